"""The front door as OpenAI's own Python client sees it: an answer, a stream, and a stream that is closed half way."""

import uuid

import pytest
from openai import OpenAI

from server import SERVER, get, released

QUESTION = [{"role": "user", "content": "Name three rivers, one sentence each."}]
# Far more than is read before the close: the run cannot end by itself in between.
LONG = 1500


@pytest.fixture(scope="module")
def client():
    with OpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_an_answer_is_whole_and_its_run_is_released(client, model):
    run_id = f"sdk-{uuid.uuid4()}"
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=24, temperature=0, extra_headers={"X-Request-Id": run_id}
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    run = released(run_id)
    assert run["outcome"]["kind"] == "completed" and run["delivery"] == "complete"
    assert run["tokens"]["prompt"] == answer.usage.prompt_tokens


def test_a_stream_says_the_same_as_the_answer(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_stream_closed_half_way_stops_and_gives_its_blocks_back(client, model):
    run_id = f"sdk-{uuid.uuid4()}"
    before = get("/v1/kv")
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=LONG,
        stream=True,
        extra_headers={"X-Request-Id": run_id},
        extra_body={"ignore_eos": True},
    )
    for number, _ in enumerate(stream):
        if number == 8:
            break
    stream.close()
    run = released(run_id)
    assert run["outcome"]["kind"] == "cancelled", run
    assert run["outcome"]["cause"] in ("client_closed", "client_reset"), run
    assert run["delivery"] == "partial" and run["blocks"]["held"] == 0, run
    assert run["tokens"]["generated"] < LONG / 2, "it went on as if nobody had left"
    assert run["guarantee"] == "confirmed"
    assert run["milestones"]["disconnect_observed"] <= run["milestones"]["released"]
    after = get("/v1/kv")
    assert after["conserved"] and after["active"] == before["active"] and after["draining"] == 0
    assert after["free"] + after["cached"] == before["free"] + before["cached"]
