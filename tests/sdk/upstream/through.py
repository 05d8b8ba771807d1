"""What the tests in this folder ask of an engine, directly and through the gateway in front of it, and what must hold of both answers.

Needs KVIT_TEST_SERVER (the gateway), KVIT_TEST_UPSTREAM (the engine) and KVIT_TEST_KIND: which scripted engine it is, `kvit`, or nothing
for a real one of somebody's. Where a gateway of others stands before the engine, KVIT_TEST_UPSTREAM is that one, KVIT_TEST_HOP says which,
and KVIT_TEST_BEHIND is the engine. KVIT_TEST_KEY_FILE has the key that it takes (`cargo xtask sdk upstream` names them all).
"""

import json
import os
import pathlib
import urllib.request
import uuid

import jsonschema
import pytest

from server import LEFT, SERVER, get, look, until

GATEWAY = SERVER
ENGINE = os.environ["KVIT_TEST_UPSTREAM"].rstrip("/")
KIND = os.environ.get("KVIT_TEST_KIND", "")
HOP = os.environ.get("KVIT_TEST_HOP", "")
BEHIND = os.environ.get("KVIT_TEST_BEHIND", "").rstrip("/") or ENGINE
KEY_FILE = os.environ.get("KVIT_TEST_KEY_FILE", "")
NO_KEY = "none"
KEY = pathlib.Path(KEY_FILE).read_text().strip() if KEY_FILE else NO_KEY
# Answers to one request are the same; and they are the same bytes, unless another gateway names and dates them.
SCRIPTED = KIND not in ("", "kvit")
EXACT = SCRIPTED and not HOP
needs_tools = pytest.mark.skipif(KIND == "kvit", reason="kvit serve has no tool calls and no JSON mode yet")
only_scripted = pytest.mark.skipif(not SCRIPTED, reason="no small model does this whenever it is asked")

JSON_OBJECT = {"type": "json_object"}

# What an engine refuses. Ollama reads over a format that it does not know.
NONSENSE = {"messages": []} if KIND == "ollama" else {"response_format": {"type": "nonsense"}}

RIVERS = [{"role": "user", "content": "Name three rivers, one sentence each."}]
STORY = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
ASKED_FOR_JSON = [{"role": "user", "content": "Describe the weather in Paris as JSON."}]
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}
ARGUMENTS = {
    "type": "object",
    "properties": {"city": WEATHER["properties"]["city"], "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": ARGUMENTS, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
# Of a conversation with a call in it already a small model makes another one.
CALLED = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome", "unit": "celsius"}'}}
IN_PARIS = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    {"role": "user", "content": "What is the weather in Paris?"},
]
# Where an answer is to come to an end by itself.
ENOUGH = 200


def does(what):
    """Which column of the table a test stands in."""
    return pytest.mark.does(what)


def run_name():
    return f"through-{uuid.uuid4()}"


def model():
    return get("/v1/models")["data"][0]["id"]


def both(ask):
    """`ask` of the engine and of the gateway. The engine is asked twice: what it computes may depend on what it has kept of a prompt."""
    ask(ENGINE)
    return ask(ENGINE), ask(GATEWAY)


def key(base):
    """The gateway's callers have none: it has that of the engine."""
    return NO_KEY if base == GATEWAY else KEY


def retries(base):
    """How often a client asks again. Of the gateway it is never to need that; `llama-server` closes a connection behind a stream although
    it says that it keeps it, and a client that asks it directly may be cut off."""
    return 0 if base == GATEWAY else 2


def parsed(text, schema):
    """A text that is JSON and fits."""
    value = json.loads(text)
    jsonschema.validate(value, schema)
    return value


def an_object(text, finish):
    """A text in the mode without a schema. What a small model puts into such an object may have no end but that of its tokens."""
    if finish == "length" and not SCRIPTED:
        assert text.lstrip().startswith("{"), text
    else:
        assert finish == "stop" and isinstance(json.loads(text), dict), text


# What differs between any two answers of one engine: names, times, and how much of the prompt was known.
OWN = {"id", "created", "timings", "metrics", "prompt_tokens_details", "kvit"}


def same(value):
    """An answer without what is its own."""
    if isinstance(value, dict):
        return {key: same(part) for key, part in value.items() if key not in OWN}
    return [same(part) for part in value] if isinstance(value, list) else value


def alike(passed, direct):
    """Whether what was passed on is what a script has said to somebody else, too. Of a real engine that is not asked: it may put two tokens
    into one event when it is slow to send."""
    return not SCRIPTED or (passed == direct if EXACT else same(passed) == same(direct))


def fold(chunks):
    """A stream of chunks (as objects of JSON) in the form of an answer: index -> (text, calls, finish reason); and the usage."""
    answers, usage = {}, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text, calls, finish = answers.get(choice["index"], ("", {}, None))
            delta = choice["delta"]
            for call in delta.get("tool_calls") or []:
                name, arguments = calls.get(call["index"], ("", ""))
                told = call["function"]
                calls[call["index"]] = (name + (told.get("name") or ""), arguments + (told.get("arguments") or ""))
            end = choice.get("finish_reason")
            assert not (finish and end), "two ends of one answer"
            answers[choice["index"]] = (text + (delta.get("content") or ""), calls, finish or end)
    return answers, usage


def folded(answer):
    """The same of an answer that is whole."""
    answers = {}
    for choice in answer["choices"]:
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls") or []]
        answers[choice["index"]] = (choice["message"]["content"] or "", dict(enumerate(calls)), choice["finish_reason"])
    return answers, answer["usage"]


def told(answers):
    """Answers without the blanks around their text: before a call vLLM has some in a stream, and none in an answer. A call that was asked for
    by its name LiteLLM ends as `tool_calls` in a stream, and as the engine does in an answer."""
    return {index: (text.strip(), calls, None if HOP and calls else finish) for index, (text, calls, finish) in answers.items()}


def counts(usage):
    """What every engine says of it."""
    found = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert found["total_tokens"] == found["prompt_tokens"] + found["completion_tokens"] and found["completion_tokens"] > 0, usage
    return found


def settled(name):
    """The run's record, once nothing of it can change any more."""

    def over():
        run = look(name)
        return run if run and run["settled"] else None

    run = until(over)
    assert run, f"not settled: {look(name)}"
    return run


def ended(name, usage=None):
    """The record of a run that was answered to its end. What the engine said of its prompt stands in it."""
    run = settled(name)
    assert run["outcome"]["kind"] == "completed", run
    # Clients close when they have read the end of a stream. On a busy machine that can be seen before the gateway has told the run's end.
    assert run["delivery"] == "complete" or set(run["superseded"]) & set(LEFT), run
    assert run["tokens"]["delivered"] == run["tokens"]["generated"], run
    assert not usage or run["tokens"]["prompt"] == usage["prompt_tokens"], run
    return run


def busy():
    """How many requests the engine has, by its own counters."""
    if KIND == "kvit":
        return sum(get("/v1/kv", BEHIND)["runs"].values())
    if SCRIPTED:
        return get("/scripted", BEHIND)["running"]
    with urllib.request.urlopen(f"{BEHIND}/metrics", timeout=120) as answer:
        return sum(float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(RUNNING))


# Counters of those that run or wait.
RUNNING = (
    "vllm:num_requests_running", "vllm:num_requests_waiting{", "llamacpp:requests_processing", "llamacpp:requests_deferred",
    "sglang:num_running_reqs", "sglang:num_queue_reqs",
)  # fmt: skip


def begun():
    """Waits until the engine has a request. Nothing of an answer that is not streamed can be seen in the gateway."""
    assert until(lambda: busy() > 0), "the engine has no request"


# What an engine of this kind can prove of a caller that has left; of a busy real one perhaps nothing.
SURELY, WELL, BADLY = "confirmed", "observed", "best_effort"
LEVELS = {"kvit": [SURELY], "sglang": [BADLY], "ollama": [BADLY], "vllm": [WELL], "llamacpp": [WELL], "": [WELL, BADLY]}
# How long the engine may go on behind a gateway that does not pass a close on: to the answer's end.
GOES_ON_S = 300


def left(name, causes=LEFT):
    """The record of a run whose caller left: it is cancelled, and nothing runs on in the engine. A gateway of others shows nothing, so
    nothing is said to be proven."""
    run = settled(name)
    assert run["outcome"]["kind"] == "cancelled" and run["outcome"]["cause"] in causes, run
    assert run["guarantee"] in ([BADLY] if HOP else LEVELS[KIND]), run
    assert (run["waste_bound_tokens"] > 0) == (run["guarantee"] == "best_effort"), run
    assert until(lambda: busy() == 0, GOES_ON_S if HOP else 30), f"the engine still has {busy()}"
    return run


def post(base, body, **headers):
    """A request without any client."""
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)
