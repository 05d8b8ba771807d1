"""Every shape that the gateway's own tests write into their snapshot, against OpenAI's models and schema. Needs no server's answer; the
checks themselves are checked with broken ones."""

import copy
import json

import pytest
from pydantic import ValidationError

from shapes import HERE, TERMINAL, valid, valid_event, valid_items, valid_response

SNAPSHOT = HERE.parent.parent / "crates" / "gateway" / "snapshots" / "responses.jsonl"
LINES = [json.loads(line) for line in SNAPSHOT.read_text(encoding="utf-8").splitlines()]
CHECKS = {"event": valid_event, "response": valid_response, "items": valid_items}


def of(what):
    return [line["body"] for line in LINES if line["what"] == what]


@pytest.mark.parametrize("case", sorted({line["case"] for line in LINES}))
def test_each_shape_is_openais(case):
    for line in LINES:
        if line["case"] == case:
            CHECKS[line["what"]](line["body"])


def test_each_status_and_each_event_is_among_them():
    statuses = {body["status"] for body in of("response")}
    assert statuses == {"queued", "in_progress", "completed", "failed", "cancelled", "incomplete"}
    assert {body["type"] for body in of("event")} >= set(TERMINAL)


def test_the_checks_see_what_is_broken():
    response = of("response")[0]
    for name in ("id", "object", "created_at", "error", "output", "tools", "model", "metadata"):
        broken = copy.deepcopy(response)
        del broken[name]
        with pytest.raises((AssertionError, ValidationError)):
            valid_response(broken)
    for name, value in (("status", "done"), ("created_at", "now"), ("usage", None), ("tools", [{"type": "function"}]), ("extra", 1)):
        with pytest.raises((AssertionError, ValidationError)):
            valid_response(response | {name: value})
    delta = next(body for body in of("event") if body["type"] == "response.output_text.delta")
    for name in ("sequence_number", "item_id", "delta", "logprobs", "output_index", "content_index"):
        with pytest.raises((AssertionError, ValidationError)):
            valid_event({k: v for k, v in delta.items() if k != name})
    with pytest.raises(AssertionError):
        valid({"object": "list"}, "ResponseItemList")
