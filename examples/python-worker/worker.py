"""A worker for kvit in Python. It speaks kvit.worker.v1 and was written from session.proto alone. Its model is `echo`."""

import argparse, asyncio, collections, contextlib, re

import grpc

import echo, required
from gateway import ASK, HEARTBEAT, ME, RESEND_AFTER, S, SUSPEND, WINDOW, Gateway, now, pb, rpc

HELLO_TIMEOUT, FRAME_BYTES, GATEWAYS, TOMBSTONES, UNITS = 5, 8 << 20, 64, 1024, 64


def key(attempt):
    return attempt.tenant, attempt.run, attempt.attempt


def outcome(cause):
    return pb.Outcome(cause=cause, kind=1 + sum(cause > last for last in (2, 10, 14, 18)))  # the table at Cause is in their order


class Run:
    """An attempt that is not released. `told`: the gateways that hear how it ends."""

    def __init__(self, submit, owner):
        self.id, self.owner, self.told, self.made = submit.attempt, owner, {owner}, 0
        self.prompt, self.n, room = echo.tokens(submit), submit.params.n, echo.CONTEXT - len(echo.tokens(submit))
        self.most = min(room, submit.params.max_tokens if submit.params.HasField("max_tokens") else 256)
        self.deadlines = [(now() + left.left_us, left.cause) for left in submit.deadlines]

    def deadline_over(self):
        in_force = [(at, cause) for at, cause in self.deadlines if cause != pb.CAUSE_QUEUE_DEADLINE or self.made == 0]
        return next((cause for at, cause in sorted(in_force) if now() >= at), None)


class Worker(rpc.WorkerServicer):
    def __init__(self, name, step_ms):
        self.name, self.step_ms, self.gateways, self.runs, self.tenures, self.steps = name, step_ms, {}, {}, 0, 0

    # --- sessions ---

    async def Session(self, requests, context):
        try:
            down = await asyncio.wait_for(anext(aiter(requests), pb.Down()), HELLO_TIMEOUT)
            required.check(down)
            hello = down.hello
            if not re.fullmatch("[A-Za-z0-9._:~-]{1,64}", hello.gateway) or len(hello.incarnation) != 16:
                raise ValueError("Hello.gateway is no name, or Hello.incarnation has not 16 bytes")
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello came in time")
        except ValueError as why:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(why))
        if 1 not in hello.versions:
            theirs = ", ".join(map(str, sorted(set(hello.versions))))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"no common protocol version: the gateway speaks {theirs}; the worker speaks 1")
        before = self.gateways.get(hello.gateway)
        if before and (hello.incarnation, hello.session) <= (before.life, before.session if hello.incarnation == before.life else 0):
            await context.abort(grpc.StatusCode.ABORTED, "a newer life or a later session of this gateway has been here")
        if not before and len(self.gateways) >= GATEWAYS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"this worker serves {GATEWAYS} gateways already")
        resumes = before and hello.incarnation == before.life and (hello.resume.worker, hello.resume.tenure) == (ME, before.tenure)
        gateway = before if resumes else self.begin(hello, before)
        gateway.open(hello)
        welcome = pb.Welcome(version=1, worker=self.name, incarnation=ME, tenure=gateway.tenure, received=gateway.lane.received)
        welcome.lease_us, welcome.stamp_us = gateway.lease, now()
        welcome.model.CopyFrom(pb.Model(id="echo", context=echo.CONTEXT, default_max_tokens=256))
        limits = {"window": WINDOW, "heartbeat_us": HEARTBEAT, "resend_after_us": RESEND_AFTER, "suspend_after_us": SUSPEND}
        welcome.limits.CopyFrom(pb.Limits(frame_bytes_max=FRAME_BYTES, **limits))
        yield pb.Up(welcome=welcome)
        reader = asyncio.create_task(self.read(gateway, hello.session, requests))
        reader.add_done_callback(lambda _: gateway.wake.set())
        try:
            while not reader.done() and gateway.session == hello.session:
                for frame in list(gateway.frames()):
                    yield frame
                gateway.wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(gateway.wake.wait(), HEARTBEAT / S)
        finally:
            reader.cancel()
        if gateway.session != hello.session:
            await context.abort(grpc.StatusCode.CANCELLED, "a newer session has taken this one's place")
        if reader.done() and not reader.cancelled() and isinstance(reader.exception(), ValueError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(reader.exception()))

    def begin(self, hello, before):
        """A new tenure. What the former one left: its own life holds nothing of it any more, a newer life is asked."""
        same_life = before and before.life == hello.incarnation
        self.tenures += 1
        gateway = self.gateways[hello.gateway] = Gateway(hello, self.tenures, before.mark if same_life else 0)
        left = [run for run in self.runs.values() if run.owner.name == gateway.name]
        if same_life:
            for run in left:
                self.end(run, pb.CAUSE_ORPHANED)
        elif left:
            gateway.say(ask=pb.Ask(attempts=[run.id for run in left]))
        return gateway

    async def read(self, gateway, session, requests):
        async for down in requests:
            required.check(down)
            frame, kind = down.frame, down.frame.WhichOneof("message")
            if (kind is None) != (frame.head.number == 0) or down.HasField("hello"):
                raise ValueError("DownFrame.message: a message of a known kind has a number, and only that")
            if gateway.session != session:
                return
            ours = (gateway.life, ME, gateway.tenure) == (getattr(frame.head, "from"), frame.head.to, frame.head.tenure)
            if ours and self.gateways.get(gateway.name) is gateway and gateway.hear(frame.head):
                getattr(self, f"on_{kind}")(gateway, getattr(frame, kind))

    # --- messages ---

    def on_submit(self, gateway, submit):
        if submit.number <= gateway.mark:
            return  # taken before
        gateway.mark, name, running = submit.number, key(submit.attempt), self.runs.get(key(submit.attempt))
        if submit.worker != ME:
            return self.over({gateway}, submit.attempt, pb.CAUSE_WORKER_LOST)
        if running and running.owner is gateway:
            return
        if running and running.owner.name != gateway.name:
            return self.over({gateway}, submit.attempt, pb.CAUSE_INVALID)
        if running:
            self.end(running, pb.CAUSE_ORPHANED)  # an earlier life's
        early = {other: other.tombstones.pop(name) for other in self.gateways.values() if name in other.tombstones}
        run = Run(submit, gateway)
        if early:
            self.over({gateway, *early}, submit.attempt, next(iter(early.values())))
        elif not run.prompt or not echo.can(submit.params):
            self.over({gateway}, submit.attempt, pb.CAUSE_INVALID)
        elif run.most < 1 or len(self.runs) >= UNITS:
            self.over({gateway}, submit.attempt, pb.CAUSE_OVER_LIMIT if run.most < 1 else pb.CAUSE_QUEUE_FULL)
        else:
            self.runs[name] = run
            gateway.say(accepted=pb.Accepted(attempt=run.id, prompt_tokens=len(run.prompt)))

    def on_cancel(self, gateway, cancel):
        name = key(cancel.attempt)
        if run := self.runs.get(name):
            run.told.add(gateway)
            gateway.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt, won=cancel.cause))
            return self.end(run, cancel.cause)
        if not 0 < cancel.number <= gateway.mark:
            if len(gateway.tombstones) >= TOMBSTONES:
                return  # nobody may think that it counts: it comes again
            gateway.tombstones.setdefault(name, cancel.cause)
        gateway.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt))

    def on_claim(self, gateway, claim):
        for run in [self.runs.get(key(attempt)) for attempt in claim.attempts]:
            if run and run.owner.name == gateway.name:
                run.owner = gateway
                run.told.add(gateway)

    def on_disclaim(self, gateway, disclaim):
        for run in [self.runs.get(key(attempt)) for attempt in disclaim.attempts]:
            if run and run.owner.name == gateway.name:
                self.end(run, pb.CAUSE_ORPHANED)

    def end(self, run, cause):
        """The first cause wins. A run of this model holds nothing once it has ended, so both words come together."""
        if self.runs.pop(key(run.id), None):
            self.over(run.told, run.id, cause, pb.Usage(prompt=len(run.prompt), generated=run.made * run.n))

    def over(self, told, attempt, cause, usage=pb.Usage()):
        for gateway in told:
            gateway.say(ended=pb.Ended(attempt=attempt, outcome=outcome(cause), usage=usage))
            gateway.say(released=pb.Released(attempt=attempt, receipt=pb.Receipt()))

    # --- the engine: a look at leases and deadlines before each step ---

    def suspended(self, run):
        return self.gateways.get(run.owner.name) is not run.owner or not run.owner.is_heard_and_hears()

    async def run(self):
        while True:
            await asyncio.sleep(self.step_ms / 1000)
            self.look()
            self.step()

    def look(self):
        for run in list(self.runs.values()):
            cause = pb.CAUSE_ORPHANED if now() >= run.owner.lease_until() else run.deadline_over()
            if cause:
                self.end(run, cause)
        for gateway in list(self.gateways.values()):
            theirs = [run.id for run in self.runs.values() if run.owner is gateway]
            if theirs and now() >= gateway.ask_at and gateway.is_heard_and_hears():
                gateway.ask_at = now() + ASK
                gateway.say(ask=pb.Ask(attempts=theirs))
            if now() >= gateway.lease_until() + gateway.lease:
                del self.gateways[gateway.name]

    def step(self):
        going, deltas = [run for run in self.runs.values() if not self.suspended(run)], collections.defaultdict(list)
        self.steps += bool(going)
        for run in going:
            (token, text), run.made = echo.token(run.prompt, run.made), run.made + 1
            finish = {"finish": pb.CAUSE_LENGTH} if run.made == run.most else {}
            for sequence in range(run.n):
                deltas[run.owner].append(pb.Delta(attempt=run.id, sequence=sequence, text=text, tokens=[token], **finish))
        for gateway, theirs in deltas.items():
            gateway.say(step=pb.Step(step=self.steps, deltas=theirs))
        for run in going:
            if run.made == run.most:
                self.end(run, pb.CAUSE_LENGTH)

    # --- the calls outside the session ---

    async def Snapshot(self, request, context):
        states = [pb.ATTEMPT_STATE_SUSPENDED if self.suspended(run) else pb.ATTEMPT_STATE_DECODING for run in self.runs.values()]
        active, waiting = len(self.runs), states.count(pb.ATTEMPT_STATE_SUSPENDED)
        cut = pb.Snapshot(step=self.steps, block_tokens=echo.CONTEXT, total=UNITS, free=UNITS - active, active=active)
        cut.queued, cut.running, cut.held.attempts, cut.held.slots_total = waiting, active - waiting, active, UNITS
        cut.tombstones = sum(len(gateway.tombstones) for gateway in self.gateways.values())
        cut.attempts.extend(pb.AttemptCut(attempt=run.id, state=state, blocks=1) for run, state in zip(self.runs.values(), states))
        return pb.SnapshotReply(worker=ME, snapshot=cut)


async def serve(worker, address):
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", FRAME_BYTES)])
    rpc.add_WorkerServicer_to_server(worker, server)
    port = server.add_insecure_port(address)
    await server.start()
    print(f"listening on {address.rpartition(':')[0]}:{port}", flush=True)
    await worker.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A kvit worker that says its prompt again.")
    parser.add_argument("--listen", default="127.0.0.1:7070", help="HOST:PORT; port 0 takes a free one")
    parser.add_argument("--name", default="python")
    parser.add_argument("--step-ms", type=int, default=20)
    args = parser.parse_args()
    asyncio.run(serve(Worker(args.name, args.step_ms), args.listen))
