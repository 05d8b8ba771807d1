"""OpenAI's client sends a request again when its own timeout is over: twice more unless told otherwise, and without a word to whoever
called it. Each try is a run of its own here, each must end and be released before it costs more than it has, and what all of them
computed for nobody is shown.
"""
# contract: C-1, C-12, C-15, C-22
# field: F-03, F-08, F-30

import httpx
import pytest
from openai import APITimeoutError, OpenAI

from server import ANY, SERVER, STORY, ask, assert_gone, counters, essay, look, released

# What the server counts, whoever asked for it.
COMPUTED = ("kvit_prompt_tokens_computed_total", "kvit_tokens_generated_total")


def openai(transport, timeout_s):
    return OpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=2, timeout=timeout_s, http_client=transport)


def create(client, run_id, body):
    body = dict(body)
    extra = {"ignore_eos": body.pop("ignore_eos")}
    return client.chat.completions.create(model="", extra_body=extra, extra_headers={"X-Request-Id": run_id}, **body)


def names(run_id):
    """The same header comes with every try; an id that is taken gets a number."""
    return [run_id, f"{run_id}~2", f"{run_id}~3"]


@pytest.mark.parametrize("where", ["decode", "prefill"])
def test_two_silent_retries_are_three_runs_and_each_is_released(note, where):
    run_id, body = ask(essay() if where == "prefill" else STORY)
    marks = []

    def sent(_):
        # The try before has been given up: what it cost is known once it is released.
        if marks:
            released(names(run_id)[len(marks) - 1])
        marks.append(counters())

    transport = httpx.Client(event_hooks={"request": [sent]})
    with openai(transport, 2.5) as client, pytest.raises(APITimeoutError):
        create(client, run_id, body)
    runs = [released(name) for name in names(run_id)]
    marks.append(counters())
    assert look(f"{run_id}~4") is None, "two retries were asked for"
    note(f"What two silent retries cost, timeout=2.5, given up in {where}:")
    note("  try  phase        prompt  cached  prompt computed  generated  delivered  after receipt  layers dropped")
    total = layers = 0
    for number, (run, before, after) in enumerate(zip(runs, marks, marks[1:]), 1):
        # Nothing had been sent that could lie unread.
        assert_gone(run, ANY, ("client_closed",))
        tokens = run["tokens"]
        assert run["delivery"] == "none" and tokens["delivered"] == 0, run
        prompt, generated = (after[name] - before[name] for name in COMPUTED)
        assert generated == tokens["generated"], (before, after, run)
        assert prompt <= tokens["prompt"] - tokens["cached_prompt"], (before, after, run)
        assert prompt == tokens["prompt"] - tokens["cached_prompt"] or tokens["generated"] == 0, run
        total += prompt + generated
        layers += run["steps"]["layers_dropped"]
        note(
            f"  {number:3}  {run['phase_at_disconnect']:11}  {tokens['prompt']:6}  {tokens['cached_prompt']:6}  {prompt:15.0f}"
            f"  {generated:9.0f}  {tokens['delivered']:9}  {tokens['after_receipt']:13}  {run['steps']['layers_dropped']:14}"
        )
    note(f"  {total:.0f} tokens were computed, and {layers} layers of steps that were then dropped. The caller has none of it.")
    # What finished steps computed of a prompt stays in the prefix index in whole blocks: a retry goes on from there.
    cached = [run["tokens"]["cached_prompt"] for run in runs]
    assert cached == sorted(cached), runs
    assert total + layers > 0, runs


def test_a_stream_is_not_retried_once_its_headers_came():
    run_id, body = ask(essay(), stream=True)
    with openai(None, 1.0) as client, pytest.raises((APITimeoutError, httpx.TimeoutException)):
        with create(client, run_id, body) as stream:
            list(stream)
    assert_gone(released(run_id), ("queued", "prefill"))
    assert look(f"{run_id}~2") is None


def test_over_http2_nobody_tells_of_the_timeout_and_the_tries_run_side_by_side(note):
    """httpx leaves an HTTP/2 stream without resetting it and keeps the connection: until that closes there is nothing to notice."""
    run_id, body = ask(max_tokens=5000)
    with openai(httpx.Client(http1=False, http2=True), 2.0) as client:
        with pytest.raises(APITimeoutError):
            create(client, run_id, body)
        runs = [look(name) for name in names(run_id)]
        still = sum(run["state"] != "ended" for run in runs)
        note(f"Over HTTP/2 {still} of 3 tries still ran when OpenAI's client had given up: it resets no stream.")
        for run in runs:
            assert run["state"] != "ended" or run["outcome"]["kind"] == "cancelled", run
    for name in names(run_id):
        run = released(name)
        assert_gone(run)
        assert run["delivery"] == "none", run


def test_a_deadline_ends_what_such_a_client_leaves_behind():
    """The remedy that needs nobody to tell: the client's timeout, said in a header, ends every try by itself."""
    run_id, body = ask(max_tokens=5000)
    with openai(httpx.Client(http1=False, http2=True, headers={"X-Request-Timeout-Ms": "4000"}), 2.0) as client:
        with pytest.raises(APITimeoutError):
            create(client, run_id, body)
        for name in names(run_id):
            run = released(name)
            if run["outcome"]["kind"] == "cancelled":
                assert_gone(run)
                continue
            assert (run["outcome"]["kind"], run["outcome"]["cause"]) == ("expired", "client_deadline"), run
            assert run["tokens"]["after_receipt"] <= 1 and run["blocks"]["held"] == 0, run
