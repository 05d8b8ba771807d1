"""An `Idempotency-Key`, given once to OpenAI's client, goes with each of its silent tries. Whether a try joins the run of the one before is
decided by whether that one has been seen to leave: over HTTP/2 httpx says nothing, and all tries are one run; over HTTP/1.1 it closes its
connection first, the run is cancelled, and the next try gets a run of its own.
"""
# contract: C-1, C-13, C-15, C-26
# field: F-03, F-30

import httpx
import pytest
from openai import OpenAI

from server import SERVER, STORY, ask, assert_gone, counters, look, released

# A try that is given up, and one that waits for its answer.
SHORT_S, LONG_S = 0.7, 120.0
# More than is decoded in two short tries and what the client waits between them (0.5 and 1 s at most), by far.
TOKENS = 1500
COMPUTED = ("kvit_prompt_tokens_computed_total", "kvit_tokens_generated_total")


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_silent_tries_with_a_key_are_one_run_unless_each_is_seen_to_leave(note, version):
    run_id, body = ask(STORY, max_tokens=TOKENS)
    extra = {"ignore_eos": body.pop("ignore_eos")}
    tries = []

    def sent(request):
        tries.append(request.headers["Idempotency-Key"])
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), SHORT_S if len(tries) < 3 else LONG_S)

    before = counters()
    over = {"http1": False, "http2": True} if version == "HTTP/2" else {}
    transport = httpx.Client(event_hooks={"request": [sent]}, **over)
    with OpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=2, http_client=transport) as client:
        headers = {"X-Request-Id": run_id, "Idempotency-Key": f"key-{run_id}"}
        raw = client.chat.completions.with_raw_response.create(model="", extra_body=extra, extra_headers=headers, **body)
        answer = raw.parse()
    assert raw.http_response.http_version == version
    assert tries == [f"key-{run_id}"] * 3, "the client says the same key each time"
    assert answer.usage.completion_tokens == TOKENS, answer.usage
    joins = version == "HTTP/2"
    names = [run_id] if joins else [run_id, f"{run_id}~2", f"{run_id}~3"]
    runs = [released(name) for name in names]
    last = runs[-1]
    after = counters()
    assert raw.headers.get("X-Kvit-Joined") == ("true" if joins else None), raw.headers
    assert raw.headers["X-Request-Id"] == names[-1], raw.headers
    assert look(f"{run_id}~{len(names) + 1}") is None, "one run more than there should be"
    assert (last["outcome"]["kind"], last["delivery"]) == ("completed", "complete"), last
    assert last["tokens"]["generated"] == last["tokens"]["delivered"] == TOKENS, last
    for run in runs[:-1]:
        assert_gone(run, causes=("client_closed",))
        assert run["delivery"] == "none" and run["tokens"]["delivered"] == 0, run
    prompt, generated = (after[name] - before[name] for name in COMPUTED)
    assert generated == sum(run["tokens"]["generated"] for run in runs), (before, after, runs)
    assert prompt <= sum(run["tokens"]["prompt"] - run["tokens"]["cached_prompt"] for run in runs), (before, after, runs)
    assert not joins or generated == TOKENS, "what was computed was computed once"
    note(f"Three tries with one key over {version}: {len(runs)} run(s), {generated:.0f} tokens computed for an answer of {TOKENS}.")
