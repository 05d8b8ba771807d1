"""curl through the gateway, with nothing between the test and the wire: status, content type and, of a scripted engine, every byte."""
# contract: C-6, C-29
# field: F-01, F-03, F-08

import json
import subprocess

import pytest

from through import (
    ARGUMENTS, ASKED_FOR_JSON, ENOUGH, EXACT, GATEWAY, IN_PARIS, JSON_SCHEMA, NONSENSE, RIVERS, STORY, TOOL, WEATHER, begun, both, counts, does,
    ended, fold, folded, key, left, model, needs_tools, parsed, run_name, same, told,
)  # fmt: skip

CLIENT = "curl"
VERSION = subprocess.run(["curl", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
# Behind the body: what its head was.
HEAD = "\n%{http_code} %{content_type}"
DATA = "data: "


def curl(base, name, body, *more):
    words = ["curl", "--silent", "--no-buffer", "--write-out", HEAD, *more, "--header", "Content-Type: application/json"]
    words += ["--header", f"X-Request-Id: {name}" if base == GATEWAY else f"Authorization: Bearer {key(base)}"]
    words += ["--data-binary", json.dumps(body), f"{base}/v1/chat/completions"]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def asked(messages, **more):
    return {"model": model(), "messages": messages, "max_tokens": ENOUGH, "temperature": 0} | more


def whole(base, name, body):
    """(head, body)."""
    caller = curl(base, name, body)
    said, _ = caller.communicate(timeout=300)
    assert caller.returncode == 0, said
    body, _, head = said.decode().rpartition("\n")
    return head, body


def chunks(body):
    """The events of a stream, which ends as all do. A comment is none."""
    events = [event for event in body.split("\n\n") if event.strip() and not event.startswith(":")]
    assert all(event.startswith(DATA) for event in events) and events.pop() == f"{DATA}[DONE]", body
    return [json.loads(event.removeprefix(DATA)) for event in events]


def both_ways(messages, **more):
    """The first answer of a whole and of a streamed answer, each held against the engine's own."""
    name, streamed = run_name(), run_name()
    (head, direct), (passed_head, passed) = both(lambda base: whole(base, name, asked(messages, **more)))
    assert passed_head.split(";")[0] == head.split(";")[0] == "200 application/json"
    assert same(json.loads(passed)) == same(json.loads(direct)) and (passed == direct or not EXACT)
    as_stream = asked(messages, stream=True, stream_options={"include_usage": True}, **more)
    (head, events), (passed_head, passed_events) = both(lambda base: whole(base, streamed, as_stream))
    assert passed_head == head and head.startswith("200 text/event-stream")
    assert fold(chunks(passed_events)) == fold(chunks(events)) and (passed_events == events or not EXACT)
    (answers, usage), (streamed_answers, streamed_usage) = folded(json.loads(passed)), fold(chunks(passed_events))
    assert told(answers) == told(streamed_answers) and counts(usage) == counts(streamed_usage)
    for run in (name, streamed):
        ended(run)
    return answers[0]


@does("answer")
def test_an_answer_and_a_refusal_are_the_engines_own():
    name = run_name()
    (head, direct), (passed_head, passed) = both(lambda base: whole(base, name, asked(RIVERS, max_tokens=24)))
    assert passed_head == head and same(json.loads(passed)) == same(json.loads(direct)) and (passed == direct or not EXACT)
    nonsense = asked(RIVERS) | NONSENSE
    (head, direct), (passed_head, passed) = both(lambda base: whole(base, run_name(), nonsense))
    assert passed_head == head and head.startswith("400 ") and same(json.loads(passed)) == same(json.loads(direct))


@does("streaming")
def test_a_stream_is_the_engines_own():
    text, calls, finish = both_ways(RIVERS, max_tokens=24)
    assert text and not calls and finish in ("stop", "length")


@needs_tools
@does("tools")
def test_a_tool_is_called():
    _, calls, finish = both_ways(IN_PARIS, tools=[TOOL], tool_choice="required")
    [(name, arguments)] = calls.values()
    assert name == "get_weather" and parsed(arguments, ARGUMENTS)["city"] == "Paris" and finish == "tool_calls"


@needs_tools
@does("JSON mode")
def test_json_that_fits():
    text, _, finish = both_ways(ASKED_FOR_JSON, response_format=JSON_SCHEMA)
    assert parsed(text, WEATHER)["city"] == "Paris" and finish == "stop"


@does("leaving")
def test_killed_in_a_stream():
    name = run_name()
    caller = curl(GATEWAY, name, asked(STORY, stream=True, max_tokens=2500, ignore_eos=True))
    for _ in range(12):
        assert caller.stdout.readline()
    caller.kill()
    run = left(name)
    caller.communicate(timeout=30)
    assert run["delivery"] == "partial", run


@does("leaving")
def test_its_own_timeout_while_it_waits_for_the_whole_answer():
    name = run_name()
    caller = curl(GATEWAY, name, asked(STORY, max_tokens=2500, ignore_eos=True), "--max-time", "2")
    begun()
    caller.communicate(timeout=120)
    assert caller.returncode == 28
    assert left(name, ("client_closed",))["delivery"] == "none"
