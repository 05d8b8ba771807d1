"""The Responses API as OpenAI's Python client drives it: waited for, streamed, left in the background, polled, resumed, cancelled, deleted.

Every object and every event is held against the client's own models, read strictly, and against the published schema.
Cites: contract C-6, C-8, C-13, C-25, C-26, C-30; field F-01.
"""

import json
import uuid

import openai
import pytest
from openai import OpenAI

from server import SERVER, look, released, until
from shapes import TERMINAL, valid_event, valid_items, valid_response

QUESTION = "Name three rivers, one sentence each."
# Far more than is waited for: such a run cannot end by itself meanwhile.
LONG = dict(max_output_tokens=3000, extra_body={"ignore_eos": True})


@pytest.fixture(scope="module")
def client():
    with OpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture
def ask(model):
    """What each test asks, under an id of its own."""

    def ask(**more):
        asked = dict(model=model, input=QUESTION, temperature=0, max_output_tokens=24) | more
        return asked | dict(extra_headers={"X-Request-Id": f"sdk-{uuid.uuid4()}"})

    return ask


def checked(raw):
    """A response as the client reads it, once it was held against everything."""
    valid_response(json.loads(raw.http_response.text))
    return raw.parse()


def create(client, **asked):
    return checked(client.responses.with_raw_response.create(**asked))


def retrieve(client, response_id):
    return checked(client.responses.with_raw_response.retrieve(response_id))


def cancel(client, response_id):
    return checked(client.responses.with_raw_response.cancel(response_id))


def with_effects(response):
    """What the answer to a cancel is: the response, and what its run did outside, here nothing."""
    body = response.to_dict()
    return body | {"kvit": body["kvit"] | {"effects": []}}


def body(event):
    return valid_event(event.model_dump(mode="json", exclude_unset=True))


def ended(client, response_id):
    def over():
        response = retrieve(client, response_id)
        return response if response.status not in ("queued", "in_progress") else None

    response = until(over, 120)
    assert response, retrieve(client, response_id)
    return response


def run_of(response):
    return response.kvit["run"]


def text_of(events):
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def numbers(events):
    return [event["sequence_number"] for event in events]


def test_an_answer_that_is_waited_for(client, ask):
    asked = ask(instructions="Answer in English.", metadata={"test": "sdk"}, user="u1")
    response = create(client, **asked)
    run_id = asked["extra_headers"]["X-Request-Id"]
    assert (response.id, run_of(response)) == (f"resp_{run_id}", run_id)
    assert response.status in ("completed", "incomplete") and response.output_text
    assert (response.instructions, response.metadata, response.user) == ("Answer in English.", {"test": "sdk"}, "u1")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    run = released(run_id)
    assert run["outcome"]["kind"] == "completed" and run["delivery"] == "complete", run
    assert run["tokens"]["prompt"] == response.usage.input_tokens


def test_a_stream_says_the_same_as_the_answer(client, ask):
    whole = create(client, **ask())
    events = [body(event) for event in client.responses.create(**ask(), stream=True)]
    assert numbers(events) == list(range(len(events)))
    assert [event["type"] for event in events[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    assert text_of(events) == whole.output_text == events[-1]["response"]["output"][0]["content"][0]["text"]
    assert events[-1]["response"]["usage"]["output_tokens"] == whole.usage.output_tokens


def test_an_answer_at_its_cap_is_incomplete(client, ask):
    response = create(client, **ask(max_output_tokens=5, extra_body={"ignore_eos": True}))
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 5
    last = [body(event) for event in client.responses.create(**ask(max_output_tokens=5, extra_body={"ignore_eos": True}), stream=True)][-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_messages_are_the_same_as_a_text(client, ask):
    text = create(client, **ask())
    parts = [{"type": "input_text", "text": QUESTION[:10]}, {"type": "input_text", "text": QUESTION[10:]}]
    for content in (QUESTION, parts):
        assert create(client, **ask(input=[{"role": "user", "content": content}])).output_text == text.output_text


def test_the_clients_own_accumulator_reads_a_stream(client, ask):
    with client.responses.stream(**ask()) as stream:
        for event in stream:
            pass
        assert event.type in TERMINAL
        text = "".join(part.text for item in stream._state._ResponseStreamState__current_snapshot.output for part in item.content)
    assert text == create(client, **ask()).output_text


@pytest.mark.parametrize("events", [1, 12])
def test_an_interactive_stream_that_is_closed_is_cancelled(client, ask, events):
    asked = ask(**LONG)
    run_id = asked["extra_headers"]["X-Request-Id"]
    stream = client.responses.create(**asked, stream=True)
    for number, _ in enumerate(stream):
        if number == events:
            break
    stream.close()
    run = released(run_id)
    assert run["outcome"]["kind"] == "cancelled" and run["outcome"]["cause"] in ("client_closed", "client_reset"), run
    assert run["delivery"] != "complete" and run["blocks"]["held"] == 0 and run["guarantee"] == "confirmed", run
    # It is kept all the same, and says what became of it.
    response = ended(client, f"resp_{run_id}")
    assert response.status == "cancelled" and response.error is None


def test_a_background_response_is_polled_to_its_end(client, ask):
    response = create(client, **ask(background=True))
    assert response.background and response.status in ("queued", "in_progress")
    done = ended(client, response.id)
    assert done.status in ("completed", "incomplete")
    assert done.output_text == create(client, **ask()).output_text
    assert retrieve(client, response.id).to_dict() == done.to_dict()
    run = released(run_of(done))
    assert run["outcome"]["kind"] == "completed" and run["delivery"] == "none", run


@pytest.mark.parametrize("after", [0, 1, 5, 20])
def test_a_background_stream_is_resumed_behind_a_number(client, ask, after):
    """What was read before the stream was closed and what comes behind it are the whole stream, nothing twice and nothing missing."""
    first = []
    asked = ask(background=True, max_output_tokens=64, extra_body={"ignore_eos": True})
    with client.responses.create(**asked, stream=True) as stream:
        for event in stream:
            first.append(body(event))
            if event.sequence_number == after:
                break
    response_id = first[0]["response"]["id"]
    assert first[0]["type"] == "response.created" and numbers(first) == list(range(after + 1))
    rest = [body(event) for event in client.responses.retrieve(response_id, stream=True, starting_after=after)]
    whole = [body(event) for event in client.responses.retrieve(response_id, stream=True)]
    assert first + rest == whole
    assert numbers(whole) == list(range(len(whole))) and whole[-1]["type"] in TERMINAL
    assert text_of(whole) == ended(client, response_id).output_text
    with client.responses.stream(response_id=response_id, starting_after=after) as stream:
        assert [event.sequence_number for event in stream] == numbers(rest)


def test_who_leaves_a_background_stream_ends_nothing(client, ask):
    stream = client.responses.create(**ask(background=True, max_output_tokens=200, extra_body={"ignore_eos": True}), stream=True)
    response_id = next(iter(stream)).response.id
    stream.close()
    done = ended(client, response_id)
    assert done.status == "incomplete" and done.usage.output_tokens == 200


def test_a_background_response_is_cancelled_twice(client, ask):
    response = create(client, **ask(background=True, **LONG))
    stream = client.responses.retrieve(response.id, stream=True)
    events = iter(stream)
    read = [body(next(events))]
    while read[-1]["type"] != "response.output_text.delta":
        read.append(body(next(events)))
    first = cancel(client, response.id)
    assert first.status == "cancelled" and first.error is None and first.kvit["cause"] == "cancel_requested"
    assert first.output_text and first.output[0].status == "incomplete"
    # A stream that was open ends with a terminal event, and closes.
    read += [body(event) for event in events]
    assert read[-1]["type"] == "response.failed" and read[-1]["response"]["status"] == "cancelled"
    assert text_of(read) == first.output_text
    assert cancel(client, response.id).to_dict() == first.to_dict()
    assert with_effects(retrieve(client, response.id)) == first.to_dict()
    run = released(run_of(first))
    assert run["outcome"]["cause"] == "cancel_requested" and run["blocks"]["held"] == 0 and run["guarantee"] == "confirmed", run
    assert run["tokens"]["generated"] < 3000


def test_to_cancel_what_is_over_changes_nothing(client, ask):
    done = ended(client, create(client, **ask(background=True)).id)
    assert cancel(client, done.id).to_dict() == with_effects(done)
    interactive = create(client, **ask())
    assert cancel(client, interactive.id).status == interactive.status


def test_an_interactive_stream_is_cancelled_by_name(client, ask):
    stream = client.responses.create(**ask(**LONG), stream=True)
    events = iter(stream)
    read = [body(next(events))]
    assert cancel(client, read[0]["response"]["id"]).status == "cancelled"
    read += [body(event) for event in events]
    assert read[-1]["type"] == "response.failed" and read[-1]["response"]["status"] == "cancelled"


def test_only_what_is_over_is_deleted(client, ask):
    response = create(client, **ask(background=True, **LONG))
    with pytest.raises(openai.ConflictError) as live:
        client.responses.delete(response.id)
    assert live.value.code == "response_in_progress"
    cancel(client, response.id)
    raw = client.responses.with_raw_response.delete(response.id)
    assert json.loads(raw.http_response.text) == {"id": response.id, "object": "response", "deleted": True}
    for gone in (client.responses.retrieve, client.responses.cancel, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            gone(response.id)
    with pytest.raises(openai.BadRequestError) as behind:
        client.responses.create(**ask(previous_response_id=response.id))
    assert behind.value.code == "previous_response_not_found"


def test_a_conversation_goes_on_behind_a_response(client, ask):
    first = create(client, **ask(instructions="Answer in one word."))
    second = create(client, **ask(previous_response_id=first.id, input="And a mountain?"))
    assert second.previous_response_id == first.id and second.instructions is None
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And a mountain?"},
    ]
    said = create(client, **ask(input=turns))
    assert (second.output_text, second.usage.input_tokens) == (said.output_text, said.usage.input_tokens)
    # What a client gets it may send again as it is.
    again = [turns[0], first.output[0].to_dict(), turns[2]]
    assert create(client, **ask(input=again)).output_text == said.output_text


def test_the_input_is_listed_in_pages(client, ask):
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"turn {i}"} for i in range(5)]
    response = create(client, **ask(input=turns))
    for order, expected in (("asc", range(5)), ("desc", reversed(range(5)))):
        raw = client.responses.input_items.with_raw_response.list(response.id, order=order, limit=2)
        assert valid_items(json.loads(raw.http_response.text))["has_more"]
        items = list(client.responses.input_items.list(response.id, order=order, limit=2))
        assert [item.content[0].text for item in items] == [f"turn {i}" for i in expected]


def test_what_is_not_kept_is_not_there(client, ask):
    response = create(client, **ask(store=False))
    for gone in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as error:
            gone(response.id)
        assert error.value.code == "response_not_found"
    assert look(run_of(response))["outcome"]["kind"] == "completed"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**ask(background=True, store=False))


def test_what_is_not_supported_is_refused_by_name(client, ask):
    for name, value in (("tools", [{"type": "web_search"}]), ("conversation", "conv_1"), ("include", ["reasoning.encrypted_content"])):
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(**ask(**{name: value}))
        assert error.value.param == name and error.value.code == "unsupported_parameter"
