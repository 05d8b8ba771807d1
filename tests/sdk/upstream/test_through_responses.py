"""OpenAI's Python client asks for responses of an engine that has chat completions alone: functions, forms and log-probabilities reach it,
and its calls come back as the client knows them. Every object and event is held against the client's own models and the published schema.
"""
# contract: C-6

import json
from typing import Literal

import pydantic
import pytest
from openai import BadRequestError, OpenAI

from shapes import valid_event, valid_response
from through import (
    ARGUMENTS, ENOUGH, FUNCTION, GATEWAY, IN_PARIS, KIND, RIVERS, ended, key, model, needs_tools, only_scripted, parsed, run_name,
)  # fmt: skip

TOOL = {"type": "function", **FUNCTION}
# The conversation of the tests of chat completions, in the items of responses.
CALLED = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Rome", "unit": "celsius"}'}
QUESTION = IN_PARIS[-1]
ITEMS = [IN_PARIS[0], CALLED, {"type": "function_call_output", "call_id": "call_1", "output": "21 degrees"}, QUESTION]


class Weather(pydantic.BaseModel):
    """What `parse` makes of JSON."""

    city: Literal["Paris", "Rome", "Oslo"]
    degrees: int


@pytest.fixture
def client():
    with OpenAI(base_url=f"{GATEWAY}/v1", api_key=key(GATEWAY), max_retries=0, timeout=120) as client:
        yield client


def asked(items, name=None, **more):
    headers = {"X-Request-Id": name} if name else {}
    return dict(model=model(), input=items, max_output_tokens=ENOUGH, temperature=0, store=False, extra_headers=headers) | more


def create(client, items, **more):
    raw = client.responses.with_raw_response.create(**asked(items, **more))
    valid_response(json.loads(raw.http_response.text))
    return raw.parse()


@needs_tools
def test_a_call_is_made_answered_and_gone_on_from(client):
    name = run_name()
    response = create(client, ITEMS, name=name, tools=[TOOL])
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (response.status, call.name, parsed(call.arguments, ARGUMENTS)["city"]) == ("completed", "get_weather", "Paris")
    assert ended(name)["delivery"] == "complete"
    returned = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
    after = create(client, [QUESTION, *(item.to_dict() for item in response.output), returned], tools=[TOOL], tool_choice="none")
    assert after.status == "completed" and after.output_text and all(item.type == "message" for item in after.output)


@needs_tools
def test_a_stream_of_calls_is_what_the_client_makes_of_it(client):
    whole = create(client, ITEMS, tools=[TOOL])
    told = client.responses.create(**asked(ITEMS, tools=[TOOL]), stream=True)
    events = [valid_event(event.model_dump(mode="json", exclude_unset=True)) for event in told]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    parts = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    (call,) = [item for item in whole.output if item.type == "function_call"]
    assert "".join(parts) == done["arguments"] == call.arguments
    with client.responses.stream(**asked(ITEMS, tools=[TOOL])) as stream:
        final = stream.get_final_response()
    assert [item.arguments for item in final.output if item.type == "function_call"] == [call.arguments]


@needs_tools
@only_scripted
def test_several_calls_at_once_and_one_by_its_name(client):
    items = [{"role": "user", "content": "What is the weather in Paris and in Oslo?"}]
    response = create(client, items, tools=[TOOL])
    cities = [parsed(item.arguments, ARGUMENTS)["city"] for item in response.output if item.type == "function_call"]
    assert cities == ["Paris", "Oslo"] and len({item.call_id for item in response.output}) == len(response.output)
    named = create(client, ITEMS, tools=[TOOL], tool_choice={"type": "function", "name": "get_weather"})
    assert [item.name for item in named.output if item.type == "function_call"] == ["get_weather"]


@needs_tools
def test_the_clients_own_parser_reads_what_fits_a_model(client):
    items = [{"role": "user", "content": "Describe the weather in Paris as JSON."}]
    response = client.responses.parse(**asked(items), text_format=Weather)
    assert isinstance(response.output_parsed, Weather) and response.text.format.name == "Weather"


@pytest.mark.skipif(KIND == "ollama", reason="it has no log-probabilities")
def test_log_probabilities_of_each_token(client):
    response = create(client, RIVERS, include=["message.output_text.logprobs"], top_logprobs=1)
    part = response.output[0].content[0]
    told = b"".join(bytes(entry.bytes) for entry in part.logprobs).decode(errors="replace")
    assert told.startswith(part.text.rstrip("\ufffd")) and all(entry.logprob <= 0 and entry.top_logprobs for entry in part.logprobs), part


@pytest.mark.skipif(KIND != "kvit", reason="engines of others have words for it")
def test_what_the_engine_has_no_word_for_is_refused_in_its_own(client):
    for field, more in (("tools", dict(tools=[TOOL])), ("response_format", dict(text={"format": {"type": "json_object"}}))):
        with pytest.raises(BadRequestError) as raised:
            create(client, RIVERS, **more)
        assert "the engine answered 400" in str(raised.value) and field in str(raised.value)
