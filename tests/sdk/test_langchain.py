"""LangChain's ChatOpenAI: a loop over `.stream()` that is left, and tasks that are cancelled, streaming or not."""
# contract: C-12, C-13, C-15
# field: F-01, F-03, F-18, F-19

import asyncio

import pytest
from langchain_openai import ChatOpenAI

from server import SERVER, STORY, ask, assert_gone, essay, reached, released


def model(run_id, **more):
    return ChatOpenAI(
        base_url=f"{SERVER}/v1", api_key="none", model="smollm2-135m-instruct", max_tokens=3000, temperature=0, timeout=120,
        extra_body={"ignore_eos": True}, default_headers={"X-Request-Id": run_id}, **more
    )  # fmt: skip


@pytest.mark.parametrize("chunks", [1, 20])
def test_a_loop_over_a_stream_that_is_left(chunks):
    run_id, _ = ask()
    for number, _ in enumerate(model(run_id).stream(STORY)):
        if number >= chunks:
            break
    run = released(run_id)
    assert_gone(run)
    assert run["delivery"] == ("partial" if run["tokens"]["delivered"] else "none"), run


@pytest.mark.parametrize("how", ["astream", "ainvoke"])
@pytest.mark.parametrize("state", ["prefilling", "decoding"])
def test_a_task_that_is_cancelled(note, how, state):
    """Cancelled until it is: `astream` wraps `asyncio.wait_for` around every chunk, and before Python 3.12 that swallows a cancel which
    comes together with a chunk. The stream then goes on to its end, and so does its run: the caller has not left."""
    run_id, body = ask(essay() if state == "prefilling" else STORY)

    async def call():
        caller = model(run_id)
        if how == "ainvoke":
            return await caller.ainvoke(body["messages"])
        async for _ in caller.astream(body["messages"]):
            pass

    async def leave():
        task = asyncio.create_task(call())
        await asyncio.to_thread(reached, run_id, state)
        tries = 0
        while not task.done() and tries < 1000:
            tries += 1
            task.cancel()
            await asyncio.wait([task], timeout=0.05)
        assert task.cancelled(), f"{tries} cancels, and it is {task}"
        if tries > 1:
            note(f"LangChain's {how} swallowed {tries - 1} of {tries} cancels of its task.")
        # The model and its connections live on.
        return await asyncio.to_thread(released, run_id)

    run = asyncio.run(leave())
    assert_gone(run, ("prefill", "before_first_token", "decode"))
    assert run["delivery"] == "none" or how == "astream", run
