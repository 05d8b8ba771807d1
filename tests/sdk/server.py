"""The server under test, as every test file here sees it: its records, its account, and what must hold of a run whose caller left.

Needs a server at KVIT_TEST_SERVER (`cargo xtask sdk` starts one).
"""

import json
import os
import time
import urllib.error
import urllib.request
import uuid

SERVER = os.environ["KVIT_TEST_SERVER"].rstrip("/")
CHAT = f"{SERVER}/v1/chat/completions"
STORY = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
# What a caller that leaves may have been waiting for, where a test cannot say which on a machine of unknown speed.
ANY = ("queued", "prefill", "before_first_token", "decode")
# How the kernel shows a closed socket: a reset where bytes had come that nobody read, a close otherwise.
LEFT = ("client_closed", "client_reset")


def essay():
    """About 3,000 tokens of prompt, of which nothing is in the prefix index."""
    return [{"role": "user", "content": f"{uuid.uuid4()} " + "The keeper counted the ships and wrote their names into the book. " * 215}]


def get(path, server=SERVER):
    with urllib.request.urlopen(f"{server}{path}", timeout=10) as answer:
        return json.load(answer)


def look(run_id, server=SERVER):
    """The run's record, or None where there is none."""
    try:
        return get(f"/v1/runs/{run_id}", server)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return None


def until(predicate, patience_s=30.0):
    """Polls until the predicate gives something; what it gave last otherwise."""
    end = time.monotonic() + patience_s
    while True:
        value = predicate()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


def released(run_id, server=SERVER):
    def ended():
        run = look(run_id, server)
        return run if run and run["released"] and run["settled"] else None

    run = until(ended)
    assert run, f"not released and settled: {look(run_id, server)}"
    return run


def reached(run_id, *states, server=SERVER):
    """Waits until the run is in one of the states, however long the machine takes to bring it there."""

    def there():
        run = look(run_id, server)
        assert not (run and run["state"] == "ended"), f"ended before it was {states}: {run}"
        return run and run["state"] in states

    assert until(there, 120), look(run_id, server)


def ask(messages=STORY, **more):
    """A fresh run's id, and the request in the body's own words."""
    return f"sdk-{uuid.uuid4()}", dict(messages=messages, max_tokens=3000, temperature=0, ignore_eos=True) | more


def assert_gone(run, phases=ANY, causes=LEFT):
    """A caller who has read no more than a stream's first event may have left in any phase: that event says that the run was taken on, and
    comes while it waits for its first step."""
    assert run["released"] and run["settled"], run
    assert run["outcome"]["kind"] == "cancelled" and run["outcome"]["cause"] in causes, run
    assert run["phase_at_disconnect"] in phases, run
    assert run["tokens"]["after_receipt"] <= 1, run
    assert run["blocks"]["held"] == 0 and run["guarantee"] == "confirmed", run


def tokens_in(chunk):
    """How many tokens a chunk brings to a caller who asked for log-probabilities: they come one entry a token."""
    return sum(len(choice.logprobs.content or ()) for choice in chunk.choices if choice.logprobs)


def assert_nothing_late(run, read):
    """What a caller read, by its own count, was delivered, and what was delivered was computed before its leaving was seen."""
    tokens = run["tokens"]
    assert read <= tokens["delivered"] <= tokens["generated"] - tokens["after_disconnect"], (read, run)


def counters():
    """Every counter and gauge of /metrics by its name and labels."""
    with urllib.request.urlopen(f"{SERVER}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def rest(server=SERVER):
    """The account, once nothing runs and nothing drains; None while something does."""
    kv = get("/v1/kv", server)
    quiet = kv["active"] == 0 and kv["draining"] == 0 and sum(kv["runs"].values()) == 0
    return kv if quiet else None


def assert_serves():
    """Whoever comes next is served as if nobody had left."""
    run_id, body = ask([{"role": "user", "content": "Name a river."}], max_tokens=3)
    request = urllib.request.Request(CHAT, json.dumps(body).encode(), {"Content-Type": "application/json", "X-Request-Id": run_id})
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer = json.load(answer)
    assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length", answer
    run = released(run_id)
    assert run["outcome"]["kind"] == "completed" and run["delivery"] == "complete", run
