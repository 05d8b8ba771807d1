"""OpenAI's Python client behind a full engine: whoever leaves the queue has cost no step and no block, and the run in front notices nothing.

Starts a server of its own that runs one at a time.
"""
# contract: C-8, C-12, C-13, C-15
# field: F-03, F-34, F-82

import asyncio

import httpx
import pytest
from openai import APIError, APITimeoutError, AsyncOpenAI, OpenAI

from own import serve
from server import STORY, ask, assert_gone, assert_nothing_late, get, reached, released, rest, tokens_in, until

CLOSED = ("client_closed",)


@pytest.fixture(scope="module")
def server():
    with serve("--max-running", "1") as address:
        yield address


@pytest.fixture
def client(server):
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def create(client, run_id, body):
    body = dict(body)
    extra = {"ignore_eos": body.pop("ignore_eos")}
    return client.chat.completions.create(model="", extra_body=extra, extra_headers={"X-Request-Id": run_id}, **body)


@pytest.fixture
def holder(server, client):
    """A stream that has the only place from before the test until after it; what it had read is compared then."""
    before = until(lambda: rest(server))
    run_id, body = ask(STORY, stream=True, logprobs=True, max_tokens=6000)
    with create(client, run_id, body) as stream:
        chunks = iter(stream)
        read = 0
        while read < 2:
            read += tokens_in(next(chunks))
        yield
        more = read + 3
        while read < more:
            read += tokens_in(next(chunks))
    run = released(run_id, server)
    # Had it ended by itself, nobody would have had to wait.
    assert_gone(run, ("decode",))
    assert_nothing_late(run, read)
    after = until(lambda: rest(server))
    assert after and after["conserved"], get("/v1/kv", server)
    assert after["free"] + after["cached"] == before["free"] + before["cached"] == after["total"], after


def assert_cost_nothing(run, causes):
    assert_gone(run, ("queued",), causes)
    assert run["steps"]["total"] == run["blocks"]["peak"] == run["tokens"]["generated"] == run["tokens"]["delivered"] == 0, run
    assert run["delivery"] == "none", run


def test_a_stream_that_is_closed(server, client, holder):
    run_id, body = ask(stream=True)
    # Taken on, so the headers are there, and queued.
    with create(client, run_id, body):
        reached(run_id, "queued", server=server)
    # What lies unread makes a reset of a close: kvit's first event of a stream is not read here.
    assert_cost_nothing(released(run_id, server), ("client_closed", "client_reset"))


@pytest.mark.parametrize("stream", [True, False])
def test_a_task_that_is_cancelled(server, holder, stream):
    run_id, body = ask(stream=stream)

    async def leave():
        async with AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120) as client:

            async def call():
                answer = await create(client, run_id, body)
                if stream:
                    return [chunk async for chunk in answer]
                return answer

            task = asyncio.create_task(call())
            await asyncio.to_thread(reached, run_id, "queued", server=server)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await asyncio.to_thread(released, run_id, server)

    assert_cost_nothing(asyncio.run(leave()), ("client_closed", "client_reset") if stream else CLOSED)


@pytest.mark.parametrize("stream", [True, False])
def test_the_clients_own_timeout(server, client, holder, stream):
    run_id, body = ask(stream=stream)
    with pytest.raises((APITimeoutError, httpx.TimeoutException)):
        answer = create(client.with_options(timeout=0.7), run_id, body)
        # It is the silence after a stream's headers that is too long.
        with answer:
            list(answer)
    assert_cost_nothing(released(run_id, server), CLOSED)


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancel_by_name(server, client, holder, times):
    run_id, body = ask(stream=True, logprobs=True)
    with create(client, run_id, body) as stream:
        reached(run_id, "queued", server=server)
        said = [client.post(f"/runs/{run_id}/cancel", cast_to=httpx.Response).json() for _ in range(times)]
        with pytest.raises(APIError) as raised:
            for chunk in stream:
                assert tokens_in(chunk) == 0, chunk
    assert "cancel" in str(raised.value).lower(), raised.value
    assert all(run["released"] and run["outcome"] == said[0]["outcome"] for run in said), said
    assert_cost_nothing(released(run_id, server), ("cancel_requested",))
