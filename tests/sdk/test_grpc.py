"""gRPC's own Python client (the C core that other languages wrap too), which learns the service by reflection and leaves in its ways."""
# contract: C-12, C-13, C-15, C-22
# field: F-78

import asyncio
import gc

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from own import serve
from server import ANY, SERVER, ask, assert_gone, essay, get, reached, released, rest, until

STORY = "Tell me a long story about a lighthouse."
# Closing a channel cancels its calls and then closes the connection: whichever the server sees first.
EITHER = ("client_reset", "client_closed")
PROMPTS = {"decoding": lambda: STORY, "prefilling": lambda: essay()[0]["content"]}
MET = {"decoding": ("decode",), "prefilling": ("prefill", "before_first_token", "decode"), "queued": ("queued",)}


class Runs:
    """The service, as its reflection describes it."""

    def __init__(self, channel):
        self.channel = channel
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(grpc.insecure_channel(target(SERVER))))
        self.methods = pool.FindServiceByName("kvit.v1.Runs").methods_by_name

    def make(self, name):
        method = self.methods[name]
        request, answer = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        path = f"/{method.containing_service.full_name}/{name}"
        return request, kind(path, request_serializer=request.SerializeToString, response_deserializer=answer.FromString)

    def generate(self, run_id, text, server=SERVER, max_tokens=3000, **how):
        request, call = self.make("Generate")
        message = request(model=get("/v1/models", server)["data"][0]["id"], run=run_id, text={"text": text})
        message.params.max_tokens, message.params.temperature, message.params.ignore_eos = max_tokens, 0, True
        return call(message, **how)

    def ask(self, name, run_id):
        request, call = self.make(name)
        return call(request(run=run_id))


def target(server):
    return server.removeprefix("http://")


def fresh():
    return ask()[0]


@pytest.fixture
def runs():
    with grpc.insecure_channel(target(SERVER)) as channel:
        yield Runs(channel)


def taken(events, n):
    """Reads until so many tokens have come."""
    read = 0
    while read < n:
        read += len(next(events).delta.tokens)
    return read


def assert_expired(run, phases=ANY):
    assert (run["outcome"]["kind"], run["outcome"]["cause"]) == ("expired", "client_deadline"), run
    assert run["phase_at_disconnect"] in phases and run["guarantee"] == "confirmed", run
    assert run["tokens"]["after_receipt"] <= 1 and run["blocks"]["held"] == 0, run


def test_an_answer_is_whole_and_its_record_is_there(runs):
    run_id = fresh()
    call = runs.generate(run_id, STORY, max_tokens=8)
    events = list(call)
    assert events[0].accepted.run == run_id == dict(call.initial_metadata())["x-request-id"]
    assert sum(len(event.delta.tokens) for event in events) == 8 == events[-1].ended.usage.generated
    assert call.code() == grpc.StatusCode.OK
    released(run_id)
    states = list(runs.ask("Watch", run_id))
    assert states[-1].settled and states[-1] == runs.ask("Get", run_id)
    # Too late: it changes nothing but that it came is told.
    late = runs.ask("Cancel", run_id)
    assert late.outcome == states[-1].outcome and len(late.superseded) == 1, late
    with pytest.raises(grpc.RpcError) as absent:
        runs.ask("Get", fresh())
    assert absent.value.code() == grpc.StatusCode.NOT_FOUND
    assert dict(absent.value.trailing_metadata())["x-kvit-code"] == "run_not_found"


@pytest.mark.parametrize("state", PROMPTS)
@pytest.mark.parametrize("how", ["cancelled", "collected"])
def test_a_call_that_is_let_go(runs, how, state):
    run_id = fresh()
    call = runs.generate(run_id, PROMPTS[state]())
    if state == "decoding":
        taken(call, 3)
    reached(run_id, state)
    if how == "cancelled":
        assert call.cancel()
    else:
        del call
        gc.collect()
    run = released(run_id)
    assert_gone(run, MET[state], ("client_reset",))


@pytest.mark.parametrize("state", PROMPTS)
def test_a_channel_that_is_closed(state):
    run_id = fresh()
    channel = grpc.insecure_channel(target(SERVER))
    call = Runs(channel).generate(run_id, PROMPTS[state]())
    if state == "decoding":
        taken(call, 3)
    reached(run_id, state)
    channel.close()
    assert_gone(released(run_id), MET[state], EITHER)


@pytest.mark.parametrize("state", PROMPTS)
def test_a_timeout_is_the_run_s_deadline(runs, state):
    """The library counts for itself and resets the call when its time is over: that is the deadline's doing all the same."""
    run_id = fresh()
    call = runs.generate(run_id, PROMPTS[state](), timeout=1.5)
    with pytest.raises(grpc.RpcError) as late:
        list(call)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert_expired(released(run_id))


def test_a_task_that_is_cancelled():
    run_id = fresh()

    async def leave():
        async with grpc.aio.insecure_channel(target(SERVER)) as channel:
            call = Runs(channel).generate(run_id, STORY)

            async def read():
                async for _ in call:
                    pass

            task = asyncio.create_task(read())
            await asyncio.to_thread(reached, run_id, "decoding")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await asyncio.to_thread(released, run_id)

    assert_gone(asyncio.run(leave()), ("decode",), ("client_reset",))


@pytest.fixture(scope="module")
def full():
    """A server that runs one at a time, and is busy."""
    with serve("--max-running", "1") as server:
        with grpc.insecure_channel(target(server)) as channel:
            before = until(lambda: rest(server))
            holder = Runs(channel).generate("holder", STORY, server, max_tokens=6000)
            taken(holder, 2)
            yield server
            taken(holder, 2)
            holder.cancel()
            assert_gone(released("holder", server), ("decode",), ("client_reset",))
            after = until(lambda: rest(server))
            assert after["free"] + after["cached"] == before["free"] + before["cached"] == after["total"], after


@pytest.mark.parametrize("how", ["cancelled", "timeout", "closed"])
def test_whoever_leaves_the_queue_has_cost_nothing(full, how):
    run_id = fresh()
    channel = grpc.insecure_channel(target(full))
    call = Runs(channel).generate(run_id, STORY, full, timeout=0.5 if how == "timeout" else None)
    reached(run_id, "queued", server=full)
    if how == "cancelled":
        call.cancel()
    elif how == "closed":
        channel.close()
    else:
        with pytest.raises(grpc.RpcError) as late:
            list(call)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    run = released(run_id, full)
    if how == "timeout":
        assert_expired(run, ("queued",))
    else:
        assert_gone(run, ("queued",), EITHER)
    assert (run["steps"]["total"], run["blocks"]["peak"]) == (0, 0), run
    channel.close()
