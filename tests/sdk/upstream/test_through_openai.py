"""OpenAI's Python client through the gateway: what it makes of an answer is what it makes of the engine's own, and leaving ends the run."""
# contract: C-6, C-29
# field: F-01, F-03

import asyncio

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from typing import Literal

from server import get
from through import (
    ARGUMENTS, ASKED_FOR_JSON, BEHIND, ENGINE, ENOUGH, GATEWAY, HOP, IN_PARIS, JSON_OBJECT, JSON_SCHEMA, KIND, NONSENSE, RIVERS, STORY, TOOL, WEATHER,
    alike, an_object, begun, both, counts, does, ended, fold, folded, key, left, model, needs_tools, only_scripted, parsed, retries, run_name, same, told,
)  # fmt: skip

CLIENT, VERSION = "OpenAI (Python)", openai.__version__


class Weather(pydantic.BaseModel):
    """What `parse` makes of JSON."""

    city: Literal["Paris", "Rome", "Oslo"]
    degrees: int


def client(base):
    return OpenAI(base_url=f"{base}/v1", api_key=key(base), max_retries=retries(base), timeout=120)


def asked(messages, name=None, **more):
    headers = {"X-Request-Id": name} if name else {}
    return dict(model=model(), messages=messages, max_tokens=ENOUGH, temperature=0, extra_headers=headers) | more


def create(base, messages, name=None, **more):
    """The answer, or the chunks of a stream, as objects of JSON."""
    with client(base) as caller:
        answer = caller.chat.completions.create(**asked(messages, name, **more))
        return [chunk.model_dump() for chunk in answer] if more.get("stream") else answer.model_dump()


def both_ways(messages, **more):
    """An answer and a stream, each checked against the engine's own: (answers, usage) of both, and the runs."""
    name, streamed = run_name(), run_name()
    direct, through = both(lambda base: create(base, messages, name if base == GATEWAY else None, **more))
    assert same(through) == same(direct)
    with_usage = dict(stream=True, stream_options={"include_usage": True})
    chunks, passed = both(lambda base: create(base, messages, streamed if base == GATEWAY else None, **with_usage, **more))
    assert fold(passed) == fold(chunks)
    assert alike(passed, chunks)
    answers, usage = folded(through)
    assert told(fold(passed)[0]) == told(answers)
    assert ended(name, usage)["tokens"]["generated"] == counts(usage)["completion_tokens"]
    # Of a stream it counts what was shown: what stands around a call is not.
    assert 0 < ended(streamed, usage)["tokens"]["generated"] <= counts(fold(passed)[1])["completion_tokens"]
    return answers


@does("answer")
def test_an_answer_is_the_engines_own():
    name = run_name()
    direct, through = both(lambda base: create(base, RIVERS, name if base == GATEWAY else None, max_tokens=24))
    assert same(through) == same(direct)
    text, calls, finish = folded(through)[0][0]
    assert text and not calls and finish in ("stop", "length")
    assert ended(name, through["usage"])["tokens"]["generated"] == counts(through["usage"])["completion_tokens"]


@does("streaming")
def test_a_stream_is_the_engines_own():
    text, calls, finish = both_ways(RIVERS, max_tokens=24)[0]
    assert text and not calls and finish in ("stop", "length")


@needs_tools
@does("tools")
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_is_called_in_an_answer_and_in_a_stream(choice):
    text, calls, finish = both_ways(IN_PARIS, tools=[TOOL], tool_choice=choice)[0]
    assert not text.strip() and finish == "tool_calls"
    [(name, arguments)] = calls.values()
    assert name == "get_weather" and parsed(arguments, ARGUMENTS)["city"] == "Paris"


@needs_tools
@does("tools")
def test_the_clients_own_helper_puts_a_streamed_call_together():
    def stream(base):
        with client(base) as caller:
            with caller.chat.completions.stream(**asked(IN_PARIS, tools=[TOOL], tool_choice="required")) as events:
                done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
                return done, events.get_final_completion()

    (ours, final), (done, whole) = both(stream)
    assert [(event.name, event.index, event.arguments) for event in done] == [(event.name, event.index, event.arguments) for event in ours]
    assert [event.parsed_arguments["city"] for event in done] == ["Paris"]
    assert same(whole.model_dump()) == same(final.model_dump())
    assert whole.choices[0].finish_reason == "tool_calls"


@needs_tools
@only_scripted
@does("tools")
def test_several_calls_at_once_and_one_by_its_name():
    messages = [{"role": "user", "content": "What is the weather in Paris and in Oslo?"}]
    calls = both_ways(messages, tools=[TOOL])[0][1]
    assert [parsed(arguments, ARGUMENTS)["city"] for _, arguments in calls.values()] == ["Paris", "Oslo"]
    named = {"type": "function", "function": {"name": "get_weather"}}
    calls = both_ways(IN_PARIS, tools=[TOOL], tool_choice=named)[0][1]
    assert [name for name, _ in calls.values()] == ["get_weather"]


@needs_tools
@does("JSON mode")
def test_json_by_a_schema_in_an_answer_and_in_a_stream():
    text, calls, finish = both_ways(ASKED_FOR_JSON, response_format=JSON_SCHEMA)[0]
    assert not calls and finish == "stop"
    assert isinstance(parsed(text, WEATHER), dict)


@needs_tools
@does("JSON mode")
def test_json_without_a_schema_in_an_answer_and_in_a_stream():
    text, calls, finish = both_ways(ASKED_FOR_JSON, response_format=JSON_OBJECT)[0]
    assert not calls
    an_object(text, finish)


@needs_tools
@does("JSON mode")
def test_the_clients_own_parser_reads_what_fits_a_model():
    def parse(base):
        with client(base) as caller:
            return caller.chat.completions.parse(**asked(ASKED_FOR_JSON, response_format=Weather))

    def stream(base):
        with client(base) as caller:
            with caller.chat.completions.stream(**asked(ASKED_FOR_JSON, response_format=Weather)) as events:
                return events.get_final_completion()

    for ask in (parse, stream):
        direct, through = both(ask)
        assert isinstance(through.choices[0].message.parsed, Weather)
        assert through.choices[0].message.parsed == direct.choices[0].message.parsed


@pytest.mark.skipif(KIND == "ollama", reason="it gives one answer, without log-probabilities")
@does("answer")
def test_several_answers_and_their_log_probabilities():
    # vLLM makes no two greedy answers.
    more = dict(n=2, logprobs=True, top_logprobs=1, temperature=0.8, seed=7, max_tokens=12)
    name = run_name()
    answer = create(GATEWAY, RIVERS, name, **more)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice in answer["choices"]:
        entries = choice["logprobs"]["content"]
        # A token may be a part of a letter.
        told = b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace")
        assert told.startswith(choice["message"]["content"].rstrip("\ufffd")) and all(entry["logprob"] <= 0 for entry in entries), choice
    ended(name, answer["usage"])
    chunks = create(GATEWAY, RIVERS, stream=True, **more)
    answers, _ = fold(chunks)
    assert sorted(answers) == [0, 1] and all(text for text, _, _ in answers.values())
    # Of several answers in one stream LiteLLM tells only one end.
    assert [bool(finish) for _, _, finish in answers.values()].count(True) == (1 if HOP else 2)
    for index in answers:
        entries = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert sum(len(told["content"]) for told in entries if told and told["content"]) > 0


@pytest.mark.skipif(KIND != "ollama", reason="the others heed the newer word")
def test_a_bound_in_a_word_that_the_engine_reads_over_bounds_it_all_the_same():
    newer, name = dict(max_tokens=openai.NOT_GIVEN, max_completion_tokens=3), run_name()
    assert create(ENGINE, RIVERS, **newer)["usage"]["completion_tokens"] > 3
    answer = create(GATEWAY, RIVERS, name, **newer)
    assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length"
    ended(name, answer["usage"])


@pytest.mark.skipif(KIND != "ollama", reason="the others give as many answers as are asked for")
def test_fewer_answers_than_were_asked_for_are_the_engines_own_affair():
    whole, streamed = run_name(), run_name()
    answers = create(GATEWAY, RIVERS, whole, n=2, logprobs=True)
    chunks = create(GATEWAY, RIVERS, streamed, n=2, stream=True)
    assert [choice["index"] for choice in answers["choices"]] == [0] and list(fold(chunks)[0]) == [0]
    for run in (whole, streamed):
        ended(run)


@does("answer")
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_refused_in_its_own_words(stream):
    def refused(base):
        with pytest.raises(BadRequestError) as raised:
            create(base, RIVERS, stream=stream, extra_body=NONSENSE)
        return raised.value.status_code, same(raised.value.body), str(raised.value)

    direct, through = both(refused)
    assert through == direct


@only_scripted
def test_fields_that_nobody_here_knows_reach_the_engine_and_the_gateways_own_do_not():
    theirs, ours = {"chat_template_kwargs": {"thinking": False}, "top_k": 5}, {"timeout_ms": 60000, "on_disconnect": "cancel"}
    create(GATEWAY, RIVERS, extra_body=theirs | ours)
    asked_for = get("/scripted", BEHIND)["asked"][-1]
    assert theirs.keys() < set(asked_for) and not ours.keys() & set(asked_for), asked_for


@does("leaving")
@pytest.mark.parametrize("chunks", [1, 12])
def test_a_stream_that_is_closed(chunks):
    name = run_name()
    with client(GATEWAY) as caller:
        stream = caller.chat.completions.create(**asked(STORY, name, stream=True, max_tokens=2500, extra_body={"ignore_eos": True}))
        for number, _ in enumerate(stream, 1):
            if number == chunks:
                break
        stream.close()
        run = left(name)
    assert run["delivery"] == ("partial" if run["tokens"]["delivered"] else "none"), run


@does("leaving")
def test_a_task_that_is_cancelled_while_the_whole_answer_is_awaited():
    name = run_name()

    async def leave():
        async with AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=key(GATEWAY), max_retries=0) as caller:
            long = asked(STORY, name, max_tokens=2500, extra_body={"ignore_eos": True})
            task = asyncio.create_task(caller.chat.completions.create(**long))
            await asyncio.to_thread(begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await asyncio.to_thread(left, name, ("client_closed",))

    assert asyncio.run(leave())["delivery"] == "none"
