"""Every way in which a caller with OpenAI's Python client leaves, in every phase: the run ends for the right cause, at most one token is
computed after the cancel was received, none is delivered, and every block comes back.

Cites: contract C-12, C-13, C-15, C-22; field F-01, F-03, F-05, F-08, F-13, F-82.
"""

import asyncio
import threading
import uuid

import httpx
import pytest
from openai import APITimeoutError, AsyncOpenAI, OpenAI

from server import SERVER, STORY, assert_gone, essay, released


@pytest.fixture(scope="module")
def client():
    with OpenAI(base_url=f"{SERVER}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(messages, **more):
    run_id = f"sdk-{uuid.uuid4()}"
    body = dict(model="", messages=messages, max_tokens=600, temperature=0, extra_body={"ignore_eos": True})
    return run_id, body | more | {"extra_headers": {"X-Request-Id": run_id}}


@pytest.mark.parametrize("events", [1, 60])
def test_close_at_the_first_token_and_in_mid_decode(client, events):
    run_id, asked = ask(STORY, stream=True)
    with client.chat.completions.create(**asked) as stream:
        for number, _ in enumerate(stream):
            if number >= events:
                break
    run = released(run_id)
    assert_gone(run, ("prefill", "decode", "before_first_token"))
    assert run["delivery"] == ("partial" if run["tokens"]["delivered"] else "none"), run


def test_close_near_the_end(client):
    run_id, asked = ask(STORY, stream=True, max_tokens=80)
    with client.chat.completions.create(**asked) as stream:
        for number, _ in enumerate(stream):
            if number >= 74:
                break
    run = released(run_id)
    if run["outcome"]["kind"] != "completed":
        assert_gone(run, ("decode",))


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


def test_a_cancel_by_name_ends_the_open_stream_and_does_not_look_like_success(client):
    run_id, asked = ask(STORY, stream=True, max_tokens=3000)
    said = []

    def cancel():
        said.append(httpx.post(f"{SERVER}/v1/runs/{run_id}/cancel", timeout=30).json())

    cancelling = None
    with pytest.raises(Exception) as raised:
        for number, _ in enumerate(client.chat.completions.create(**asked)):
            if number == 5:
                cancelling = threading.Thread(target=cancel)
                cancelling.start()
    cancelling.join()
    assert "cancel" in str(raised.value).lower(), raised.value
    assert said[0]["released"] is True, said
    assert_gone(released(run_id), ("decode",), ("cancel_requested",))


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

    assert_gone(released(asyncio.run(leave())), ("prefill", "decode", "before_first_token"))
