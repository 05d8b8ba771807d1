"""LangChain's ChatOpenAI through the gateway: messages, streamed pieces, bound tools and structured output are the engine's own."""
# contract: C-6, C-29
# field: F-01, F-03, F-18

import asyncio
import importlib.metadata

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from through import (
    ARGUMENTS, ASKED_FOR_JSON, ENOUGH, GATEWAY, RIVERS, STORY, TOOL, WEATHER, begun, both, does, ended, key, left, model,
    needs_tools, only_scripted, parsed, retries, run_name,
)  # fmt: skip

CLIENT, VERSION = "LangChain (Python)", importlib.metadata.version("langchain-openai")
SCHEMA = {"title": "weather", "description": "The weather of a city", **WEATHER}
CALLED = [
    HumanMessage("What is the weather in Rome?"),
    AIMessage("", tool_calls=[{"id": "call_1", "name": "get_weather", "args": {"city": "Rome", "unit": "celsius"}}]),
    ToolMessage("21 degrees", tool_call_id="call_1"),
    HumanMessage("What is the weather in Paris?"),
]


def chat(base, name=None, **more):
    asked = {"max_tokens": ENOUGH, "temperature": 0, "timeout": 120, "max_retries": retries(base), "stream_usage": True} | more
    headers = {"X-Request-Id": name} if name and base == GATEWAY else {}
    return ChatOpenAI(base_url=f"{base}/v1", api_key=key(base), model=model(), default_headers=headers, **asked)


def told(message):
    """What a user of a message gets of it."""
    calls = [(call["name"], call["args"]) for call in message.tool_calls]
    counts = {name: message.usage_metadata[name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    return message.content, calls, message.response_metadata["finish_reason"], counts


def streamed(runnable, messages):
    """The pieces of a stream, put together as LangChain does."""
    whole = None
    for piece in runnable.stream(messages):
        whole = piece if whole is None else whole + piece
    return whole


@does("answer")
def test_a_message_is_the_engines_own():
    name = run_name()
    direct, through = both(lambda base: told(chat(base, name, max_tokens=24).invoke(RIVERS)))
    assert through == direct
    text, calls, finish, counts = through
    assert text and not calls and finish in ("stop", "length") and counts["output_tokens"] > 0
    ended(name)


@does("streaming")
def test_a_stream_is_the_engines_own():
    name = run_name()
    direct, through = both(lambda base: told(streamed(chat(base, name, max_tokens=24), RIVERS)))
    assert through == direct
    whole = told(chat(GATEWAY, max_tokens=24).invoke(RIVERS))
    assert through == whole
    ended(name)


@needs_tools
@does("tools")
@pytest.mark.parametrize("how", ["invoke", "stream"])
@pytest.mark.parametrize("choice", ["auto", "any"])
def test_a_bound_tool_is_called(how, choice):
    name = run_name()

    def call(base):
        bound = chat(base, name).bind_tools([TOOL], tool_choice=choice)
        return told(bound.invoke(CALLED) if how == "invoke" else streamed(bound, CALLED))

    direct, through = both(call)
    assert through == direct
    text, calls, finish, _ = through
    [(called, arguments)] = calls
    assert called == "get_weather" and arguments["city"] == "Paris" and arguments["unit"] in ARGUMENTS["properties"]["unit"]["enum"]
    assert not text.strip() and finish == "tool_calls"
    ended(name)


@needs_tools
@does("JSON mode")
@pytest.mark.parametrize("method", ["json_schema", pytest.param("json_mode", marks=only_scripted)])
@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_structured_output(how, method):
    name = run_name()

    def ask(base):
        structured = chat(base, name).with_structured_output(SCHEMA, method=method)
        return structured.invoke(ASKED_FOR_JSON) if how == "invoke" else list(structured.stream(ASKED_FOR_JSON))[-1]

    direct, through = both(ask)
    assert through == direct and isinstance(through, dict) and through
    if method == "json_schema":
        assert set(through) == set(WEATHER["required"]) and through["city"] == "Paris", through
    ended(name)


@needs_tools
@does("JSON mode")
def test_a_schema_that_is_only_bound():
    bound = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}
    direct, through = both(lambda base: chat(base).bind(response_format=bound).invoke(ASKED_FOR_JSON).content)
    assert through == direct and parsed(through, WEATHER)


@does("leaving")
@pytest.mark.parametrize("pieces", [1, 12])
def test_a_loop_over_a_stream_that_is_left(pieces):
    name = run_name()
    for number, _ in enumerate(chat(GATEWAY, name, max_tokens=2500, extra_body={"ignore_eos": True}).stream(STORY), 1):
        if number == pieces:
            break
    left(name)


@does("leaving")
def test_a_task_that_is_cancelled_while_the_whole_message_is_awaited():
    name = run_name()

    async def leave():
        task = asyncio.create_task(chat(GATEWAY, name, max_tokens=2500, extra_body={"ignore_eos": True}).ainvoke(STORY))
        await asyncio.to_thread(begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(left, name, ("client_closed",))

    assert asyncio.run(leave())["delivery"] == "none"
