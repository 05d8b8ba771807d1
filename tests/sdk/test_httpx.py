"""httpx itself, over HTTP/1.1 and over HTTP/2 with prior knowledge: a stream that is closed, a timeout, a task that is cancelled.

Over HTTP/1.1 httpx closes the connection of an answer that it does not read to the end. Over HTTP/2 it leaves the stream without a reset
and keeps the connection, so that there the client's own close is what the server can notice.
"""
# contract: C-12, C-13, C-15
# field: F-01, F-03, F-13, F-18, F-78

import asyncio

import httpx
import pytest

from server import ANY, CHAT, STORY, ask, assert_gone, essay, look, reached, released

VERSIONS = {"HTTP/1.1": {}, "HTTP/2": {"http1": False, "http2": True}}
BOTH = pytest.mark.parametrize("version", VERSIONS)


def client(version, **more):
    return httpx.Client(**VERSIONS[version], **({"timeout": 120} | more))


def assert_left(version, run_id, *checks):
    """What has left a connection of its own is noticed now; a stream of HTTP/2 that was never reset, when its client is closed."""
    if version == "HTTP/1.1":
        assert_gone(released(run_id), *checks)
    else:
        run = look(run_id)
        assert run["state"] != "ended" or run["outcome"]["kind"] == "cancelled", run


def read(response, events):
    assert response.status_code == 200
    for number, _ in enumerate(line for line in response.iter_lines() if line.startswith("data: ")):
        if number >= events:
            return


@BOTH
@pytest.mark.parametrize("events", [1, 20])
def test_a_stream_closed_after_some_events(version, events):
    run_id, body = ask(stream=True)
    with client(version) as caller:
        with caller.stream("POST", CHAT, json=body, headers={"X-Request-Id": run_id}) as response:
            read(response, events)
        assert response.http_version == version
        assert_left(version, run_id)
    run = released(run_id)
    assert_gone(run)
    assert run["delivery"] == ("partial" if run["tokens"]["delivered"] else "none"), run


@BOTH
@pytest.mark.parametrize("where", ["decode", "prefill"])
def test_a_timeout_while_the_whole_answer_is_awaited(version, where):
    run_id, body = ask(essay() if where == "prefill" else STORY)
    with client(version, timeout=2.0) as caller:
        with pytest.raises(httpx.ReadTimeout):
            caller.post(CHAT, json=body, headers={"X-Request-Id": run_id})
        assert_left(version, run_id, ANY, ("client_closed",))
    run = released(run_id)
    assert_gone(run, ANY, ("client_closed",))
    assert run["delivery"] == "none" and run["tokens"]["delivered"] == 0, run


@BOTH
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["prefilling", "decoding"])
def test_a_task_that_is_cancelled(version, stream, state):
    run_id, body = ask(essay() if state == "prefilling" else STORY, stream=stream)

    async def leave():
        async with httpx.AsyncClient(**VERSIONS[version], timeout=120) as caller:

            async def call():
                async with caller.stream("POST", CHAT, json=body, headers={"X-Request-Id": run_id}) as response:
                    async for _ in response.aiter_lines():
                        pass

            task = asyncio.create_task(call())
            await asyncio.to_thread(reached, run_id, state)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(assert_left, version, run_id)

    asyncio.run(leave())
    run = released(run_id)
    assert_gone(run, ("prefill", "before_first_token", "decode"))
    assert run["delivery"] == "none" or stream and run["tokens"]["delivered"], run


def test_two_runs_on_one_connection_end_with_it():
    (first, body), (second, _) = ask(stream=True), ask()
    with client("HTTP/2") as caller:
        with caller.stream("POST", CHAT, json=body, headers={"X-Request-Id": first}) as one:
            read(one, 2)
            with caller.stream("POST", CHAT, json=body, headers={"X-Request-Id": second}) as other:
                read(other, 2)
    for run_id in (first, second):
        assert_gone(released(run_id))
