"""Every way in which a caller with OpenAI's Python client leaves, in every phase: the run ends for the right cause, at most one token is
computed after the cancel was received, none is delivered, and every block comes back.

Cites: contract C-12, C-13, C-15, C-22; field F-01, F-03, F-05, F-08, F-13, F-82.
"""

import asyncio
import uuid

import httpx
import pytest
from openai import APIError, APITimeoutError, AsyncOpenAI, NotFoundError, OpenAI

from server import SERVER, STORY, assert_gone, assert_nothing_late, essay, look, reached, released, tokens_in

# Times that something is tried that a fast machine may be through with before the caller has left.
TRIES = 25


@pytest.fixture(scope="module")
def client():
    with OpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(messages, **more):
    run_id = f"sdk-{uuid.uuid4()}"
    body = dict(model="", messages=messages, max_tokens=600, temperature=0, extra_body={"ignore_eos": True})
    return run_id, body | more | {"extra_headers": {"X-Request-Id": run_id}}


def read_and_close(client, run_id, asked, tokens):
    """Reads so many tokens of a stream and closes it. How many it had read, and the run."""
    read = 0
    with client.chat.completions.create(**asked, logprobs=True) as stream:
        for chunk in stream:
            read += tokens_in(chunk)
            if read >= tokens:
                break
    return read, released(run_id)


@pytest.mark.parametrize("tokens", [1, 60])
def test_close_at_the_first_token_and_in_mid_decode(client, tokens):
    run_id, asked = ask(STORY, stream=True)
    read, run = read_and_close(client, run_id, asked, tokens)
    assert_gone(run, ("decode",))
    assert read == tokens and run["delivery"] == "partial", run
    assert_nothing_late(run, read)


def test_close_near_the_end(client):
    for earlier in range(TRIES):
        run_id, asked = ask(STORY, stream=True, max_tokens=80)
        read, run = read_and_close(client, run_id, asked, 78 - earlier)
        # It may have come to its own end before the close was seen.
        if run["outcome"]["kind"] == "completed":
            continue
        assert_gone(run, ("decode",))
        assert run["delivery"] == "partial" and 78 - earlier <= run["tokens"]["generated"] < 80, run
        return assert_nothing_late(run, read)
    pytest.fail(f"in {TRIES} tries no run was cancelled near its end")


def test_a_stream_closed_in_a_long_prefill_before_anything_was_read(client):
    run_id, asked = ask(essay(), stream=True)
    # The headers are there as soon as the run is taken on; nothing of the body is read.
    with client.chat.completions.create(**asked):
        reached(run_id, "prefilling")
    run = released(run_id)
    assert_gone(run, ("prefill",))
    assert run["tokens"]["prompt"] > 2500 and run["tokens"]["generated"] == run["tokens"]["delivered"] == 0, run
    assert run["delivery"] == "none", run


def test_a_whole_answer_left_in_a_long_prefill_before_its_headers():
    """The client has no other way to close a call that it is in than to cancel its task: that closes the connection."""
    run_id, asked = ask(essay())

    async def leave():
        async with AsyncOpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=0, timeout=120) as client:
            task = asyncio.create_task(client.chat.completions.create(**asked))
            await asyncio.to_thread(reached, run_id, "prefilling")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The client and its other connections are still there.
            return await asyncio.to_thread(released, run_id)

    run = asyncio.run(leave())
    assert_gone(run, ("prefill",), ("client_closed",))
    assert run["tokens"]["prompt"] > 2500 and run["tokens"]["generated"] == run["tokens"]["delivered"] == 0, run
    assert run["delivery"] == "none", run


@pytest.mark.parametrize("stream", [True, False])
def test_the_clients_own_timeout_in_a_long_prefill(client, stream):
    run_id, asked = ask(essay(), stream=stream)
    impatient = client.with_options(timeout=httpx.Timeout(0.7))
    # A stream's headers and its first event come before the first token: it is the silence after them that is too long.
    with pytest.raises((APITimeoutError, httpx.TimeoutException)):
        answer = impatient.chat.completions.create(**asked)
        with answer:
            list(answer)
    run = released(run_id)
    assert_gone(run, ("prefill", "queued"))
    assert run["tokens"]["generated"] == 0 and run["delivery"] == "none", run


def test_the_clients_own_timeout_while_it_waits_for_the_whole_answer(client):
    run_id, asked = ask(STORY, max_tokens=3000)
    with pytest.raises(APITimeoutError):
        client.with_options(timeout=httpx.Timeout(2.0)).chat.completions.create(**asked)
    run = released(run_id)
    assert_gone(run, ("decode",))
    assert run["tokens"]["delivered"] == 0 and run["tokens"]["generated"] > 0, run


def test_a_deadline_given_in_a_header_is_not_silently_asked_for_again(client):
    run_id, asked = ask(STORY, max_tokens=3000)
    asked["extra_headers"]["X-Request-Timeout-Ms"] = "800"
    with pytest.raises(Exception) as raised:
        client.with_options(max_retries=2).chat.completions.create(**asked)
    assert getattr(raised.value, "status_code", None) == 499, raised.value
    run = released(run_id)
    assert (run["outcome"]["kind"], run["outcome"]["cause"]) == ("expired", "client_deadline"), run
    assert httpx.get(f"{SERVER}/v1/runs/{run_id}~2").status_code == 404, "the SDK asked again"


def cancel(client, run_id):
    """kvit's own request, over OpenAI's client."""
    return client.post(f"/runs/{run_id}/cancel", cast_to=httpx.Response).json()


# contract: C-4, C-8
def test_a_cancel_by_name_once_and_twice_ends_the_open_stream_and_does_not_look_like_success(client):
    run_id, asked = ask(STORY, stream=True, max_tokens=3000)
    read, said = 0, []
    with pytest.raises(APIError) as raised:
        for chunk in client.chat.completions.create(**asked, logprobs=True):
            read += tokens_in(chunk)
            if read >= 5 and not said:
                said = [cancel(client, run_id), cancel(client, run_id)]
    assert "cancel" in str(raised.value).lower(), raised.value
    once, twice = said
    assert once["released"] is True and once["outcome"]["cause"] == "cancel_requested", once
    assert twice["released"] is True and twice["outcome"] == once["outcome"], twice
    run = released(run_id)
    assert_gone(run, ("decode",), ("cancel_requested",))
    # Whoever stays has read exactly what is called delivered, and nothing of what was computed after the cancel was received.
    assert read == run["tokens"]["delivered"] <= run["tokens"]["generated"] - run["tokens"]["after_receipt"], (read, run)


# contract: C-4, C-8
@pytest.mark.parametrize("stream", [True, False])
def test_a_cancel_after_the_end_changes_nothing(client, stream):
    run_id, asked = ask(STORY, stream=stream, max_tokens=4)
    answer = client.chat.completions.create(**asked, logprobs=True)
    if stream:
        chunks = list(answer)
        read, ended = sum(map(tokens_in, chunks)), [c.choices[0].finish_reason for c in chunks if c.choices][-1]
    else:
        read, ended = tokens_in(answer), answer.choices[0].finish_reason
    before = released(run_id)
    assert (before["outcome"]["kind"], before["delivery"], ended) == ("completed", "complete", "length"), before
    # What ended stays as it ended; that somebody wanted something else is written down.
    after = before | {"superseded": ["cancel_requested"]}
    assert cancel(client, run_id) == after
    assert look(run_id) == after
    assert read == before["tokens"]["delivered"] == 4, before


# contract: C-13, C-30
def test_a_cancel_of_an_unknown_id_is_not_found_and_makes_nothing(client):
    run_id, _ = ask(STORY)
    with pytest.raises(NotFoundError):
        cancel(client, run_id)
    assert look(run_id) is None


def test_an_async_task_that_is_cancelled():
    async def leave():
        async with AsyncOpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=0) as client:
            run_id, asked = ask(STORY, stream=True, max_tokens=3000)
            seen = asyncio.Event()

            async def read():
                async for number in await client.chat.completions.create(**asked):
                    seen.set()

            task = asyncio.create_task(read())
            await seen.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return run_id

    assert_gone(released(asyncio.run(leave())))
