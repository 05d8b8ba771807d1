"""aiohttp: a stream that is closed, a task that is cancelled in a long prefill, the client's own timeout."""
# contract: C-12, C-13, C-15
# field: F-01, F-03, F-13, F-18

import asyncio

import aiohttp
import pytest

from server import ANY, CHAT, STORY, ask, assert_gone, essay, reached, released


def leave(steps):
    async def session():
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as caller:
            await steps(caller)

    asyncio.run(session())


@pytest.mark.parametrize("how", ["close", "release"])
def test_a_stream_closed_after_some_events(how):
    run_id, body = ask(stream=True)

    async def steps(caller):
        async with caller.post(CHAT, json=body, headers={"X-Request-Id": run_id}) as response:
            for _ in range(20):
                assert await response.content.readline()
            if how == "close":
                response.close()
        # The session and its other connections are still there.
        run = await asyncio.to_thread(released, run_id)
        assert_gone(run, ("prefill", "before_first_token", "decode"))
        assert run["delivery"] == "partial", run

    leave(steps)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["prefilling", "decoding"])
def test_a_task_that_is_cancelled(stream, state):
    run_id, body = ask(essay() if state == "prefilling" else STORY, stream=stream)

    async def steps(caller):
        async def call():
            async with caller.post(CHAT, json=body, headers={"X-Request-Id": run_id}) as response:
                await response.read()

        task = asyncio.create_task(call())
        await asyncio.to_thread(reached, run_id, state)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        run = await asyncio.to_thread(released, run_id)
        assert_gone(run, ("prefill", "before_first_token", "decode"))
        assert run["delivery"] == "none" or stream, run

    leave(steps)


def test_the_clients_own_timeout_while_the_whole_answer_is_awaited():
    run_id, body = ask()

    async def steps(caller):
        with pytest.raises(asyncio.TimeoutError):
            await caller.post(CHAT, json=body, headers={"X-Request-Id": run_id}, timeout=aiohttp.ClientTimeout(total=2.0))
        run = await asyncio.to_thread(released, run_id)
        assert_gone(run, ANY, ("client_closed",))
        assert run["delivery"] == "none", run

    leave(steps)
