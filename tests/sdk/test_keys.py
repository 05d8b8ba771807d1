"""An `Idempotency-Key`, given once to OpenAI's client, goes with each of its silent tries, and all of them are one run. Over HTTP/2 httpx says
nothing when it gives up; over HTTP/1.1 it closes its connection first, and the run has a grace in which the next try comes back to it.
"""
# contract: C-1, C-13, C-15, C-26
# field: F-03, F-30

import httpx
import pytest
from openai import OpenAI

from server import SERVER, STORY, ask, counters, look, released

# A try that is given up, and one that waits for its answer.
SHORT_S, LONG_S = 0.7, 120.0
# More than is decoded in two short tries and what the client waits between them (0.5 and 1 s at most), by far.
TOKENS = 1500
COMPUTED = ("kvit_prompt_tokens_computed_total", "kvit_tokens_generated_total")


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_silent_tries_with_a_key_are_one_run(note, version):
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
    run = released(run_id)
    after = counters()
    assert raw.headers.get("X-Kvit-Joined") == "true", raw.headers
    assert raw.headers["X-Request-Id"] == run_id, raw.headers
    assert look(f"{run_id}~2") is None, "one run more than there should be"
    assert (run["outcome"]["kind"], run["delivery"]) == ("completed", "complete"), run
    assert run["tokens"]["generated"] == run["tokens"]["delivered"] == TOKENS, run
    assert run["tokens"]["after_disconnect"] == 0 and run["graces"]["begun"] == run["graces"]["resumed"], run
    prompt, generated = (after[name] - before[name] for name in COMPUTED)
    assert generated == TOKENS, "what was computed was computed once"
    assert prompt <= run["tokens"]["prompt"] - run["tokens"]["cached_prompt"], (before, after, run)
    note(f"Three tries with one key over {version}: one run, {generated:.0f} tokens computed for an answer of {TOKENS}.")
