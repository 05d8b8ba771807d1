"""A worker for kvit in Python. It speaks kvit.worker.v1 (crates/protocol/proto/kvit/worker/v1/session.proto) and was written from that file
alone. Its model says the prompt again, a byte a token, one token of each attempt a step.

    pip install -r requirements.txt
    python worker.py --port 7070
    kvit conformance 127.0.0.1:7070        # does it keep the protocol?
    kvit gateway --worker 127.0.0.1:7070   # let it serve
"""
import argparse, asyncio, collections, os, pathlib, sys, time

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "crates/protocol/proto"))
pb, rpc = grpc.protos_and_services("kvit/worker/v1/session.proto")

S = 1_000_000  # All times are in microseconds.
HEARTBEAT, RESEND, PAUSE, SUSPEND, LEASE, ASK = S // 20, S // 5, S // 100, S // 4, 10 * S, 5 * S
WINDOW, FRAME_BYTES, OUTBOX, GATEWAYS, TOMBSTONES, NAMES = 512, 8 << 20, 8192, 64, 1024, 4096
UNITS, CONTEXT, TOKENS = 64, 4096, 256
ME = int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10)  # grows from life to life


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def name(attempt):
    return attempt.tenant, attempt.run, attempt.attempt


class Peer:
    """One life of one gateway: both lanes, and when it was heard."""

    def __init__(self, hello, tenure):
        self.gateway, self.life, self.tenure, self.mark = hello.gateway, hello.incarnation, tenure, 0
        self.kept, self.acknowledged, self.next, self.received, self.missing = collections.deque(), 0, 1, 0, False
        self.sent, self.again, self.echoed, self.ask_at = 0, 0, now(), now() + ASK
        self.tombstones, self.lease, self.wake = {}, max(LEASE, hello.lease_us), asyncio.Event()
        self.suspended = self.over = False
        self.open(hello)

    def open(self, hello):
        self.session, self.heard, self.stamp, self.owes = hello.session, now(), (hello.stamp_us, now()), True
        self.next = self.acknowledged + 1

    def say(self, **message):
        self.kept.append(message)
        self.wake.set()

    def hear(self, head):
        """Takes in a frame's head; says whether its message is the next one."""
        self.heard, at = now(), now()
        if 0 < head.received - self.acknowledged <= len(self.kept):
            for _ in range(head.received - self.acknowledged):
                self.kept.popleft()
            self.acknowledged, self.next, self.sent = head.received, max(self.next, head.received + 1), at
        if head.missing and at - self.again > PAUSE:
            self.next, self.again = self.acknowledged + 1, at
        if head.stamp_us >= self.stamp[0]:
            self.stamp = head.stamp_us, at
        if head.HasField("echo") and head.echo.stamp_us <= at:
            self.echoed = max(self.echoed, head.echo.stamp_us)
        if head.number == 0 or len(self.kept) > 2 * OUTBOX:
            return False
        self.owes, fresh = True, head.number == self.received + 1
        self.missing |= head.number > self.received + 1
        self.received += fresh
        return fresh

    def frames(self):
        """What goes out now. A frame at least for each heartbeat: the writer calls once a heartbeat."""
        if self.next > self.acknowledged + 1 and now() - self.sent > RESEND:
            self.next = self.acknowledged + 1
        if self.next == self.acknowledged + 1:
            self.sent = now()
        first, self.next = self.next, min(self.acknowledged + len(self.kept), self.acknowledged + WINDOW) + 1
        numbers = list(range(first, self.next)) or [0]
        for number in numbers:
            message = self.kept[number - self.acknowledged - 1] if number else {}
            head = pb.Head(**{"from": ME}, to=self.life, tenure=self.tenure, number=number, received=self.received, missing=self.missing)
            head.stamp_us, head.echo.stamp_us, head.echo.held_us = now(), self.stamp[0], now() - self.stamp[1]
            yield pb.Up(frame=pb.UpFrame(head=head, **message))
        self.missing = self.owes = False


class Run:
    """An attempt that is not released."""

    def __init__(self, submit, peer):
        self.id, self.owner, self.told, self.suspended = submit.attempt, peer, {peer}, False
        kind, text = submit.WhichOneof("prompt"), submit.text.text
        text = "".join(t.content for t in submit.chat.turns) if kind == "chat" else text
        self.prompt = list(submit.tokens.ids) if kind == "tokens" else list(text.encode())
        self.params, self.made, self.life = submit.params, 0, peer.life
        self.most = submit.params.max_tokens if submit.params.HasField("max_tokens") else TOKENS
        self.deadlines = [(now() + d.left_us, d.cause) for d in submit.deadlines if d.cause != pb.CAUSE_QUEUE_DEADLINE]


class Worker(rpc.WorkerServicer):
    def __init__(self, args):
        self.args, self.peers, self.runs, self.behind = args, {}, {}, {}
        self.tenures = self.steps = 0
        self.former, self.draining = [], None

    # --- sessions ---

    async def Session(self, requests, context):
        down = await anext(aiter(requests), None)
        if down is None or not down.HasField("hello") or len(down.hello.incarnation) != 16 or not down.hello.gateway:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "hello: required")
        hello = down.hello
        if 1 not in hello.versions:
            theirs = ", ".join(map(str, sorted(hello.versions)))
            text = f"no common protocol version: the gateway speaks {theirs}; the worker speaks 1"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        peer = self.peers.get(hello.gateway)
        if peer and (hello.incarnation < peer.life or hello.incarnation == peer.life and hello.session <= peer.session):
            await context.abort(grpc.StatusCode.ABORTED, "a newer life or a later session of this gateway has been here")
        if not peer and len(self.peers) + len(self.former) >= GATEWAYS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"this worker serves {GATEWAYS} gateways already")
        same = peer and hello.incarnation == peer.life and (hello.resume.worker, hello.resume.tenure) == (ME, peer.tenure)
        if same:
            peer.open(hello)
        else:
            peer = self.begin(hello, peer)
        self.go_on(peer)
        model = pb.Model(id=self.args.model, context=CONTEXT, default_max_tokens=TOKENS, created_s=int(time.time()))
        limits = pb.Limits(frame_bytes_max=FRAME_BYTES, window=WINDOW, heartbeat_us=HEARTBEAT, resend_after_us=RESEND, suspend_after_us=SUSPEND)
        welcome = pb.Welcome(version=1, worker=self.args.name, incarnation=ME, tenure=peer.tenure, received=peer.received, model=model)
        welcome.lease_us, welcome.stamp_us = peer.lease, now()
        welcome.limits.CopyFrom(limits)
        yield pb.Up(welcome=welcome)
        reader = asyncio.create_task(self.read(peer, hello.session, requests))
        try:
            while not reader.done() and peer.session == hello.session:
                for frame in list(peer.frames()):
                    yield frame
                peer.wake.clear()
                try:
                    await asyncio.wait_for(peer.wake.wait(), HEARTBEAT / S)
                except TimeoutError:
                    pass
        finally:
            reader.cancel()
        if peer.session != hello.session:
            await context.abort(grpc.StatusCode.CANCELLED, "a newer session has taken this one's place")

    def begin(self, hello, before):
        """A tenure begins: the first of a life, or another one because the life holds nothing of the one before."""
        self.tenures += 1
        peer = self.peers[hello.gateway] = Peer(hello, self.tenures)
        if self.draining is not None:
            peer.say(draining=pb.Draining())
        theirs = [run for run in self.runs.values() if before and run.owner is before]
        if before and before.life == peer.life:
            peer.mark = before.mark
            for run in theirs:
                self.end(run, pb.CAUSE_ORPHANED)
        elif theirs:
            self.former.append((before, before.echoed + before.lease))
            for run in theirs:
                run.suspended = True
            peer.say(ask=pb.Ask(attempts=[run.id for run in theirs][:NAMES]))
        return peer

    async def read(self, peer, session, requests):
        async for down in requests:
            frame = down.frame
            head = frame.head
            if peer.session != session:
                return
            if getattr(head, "from") != peer.life or head.to != ME or head.tenure != peer.tenure or self.peers.get(peer.gateway) is not peer:
                continue  # of another life or tenure: it changes nothing
            fresh = peer.hear(head)
            self.go_on(peer)
            if fresh:
                kind = frame.WhichOneof("message")
                getattr(self, "on_" + kind)(peer, getattr(frame, kind))
            if head.number:
                peer.wake.set()

    def go_on(self, peer):
        """It was heard, and it hears us: what was suspended goes on."""
        if now() < min(peer.echoed + 4 * SUSPEND, peer.echoed + peer.lease) and len(peer.kept) <= OUTBOX // 2:
            peer.suspended = peer.over = False
            for run in self.runs.values():
                run.suspended &= run.owner is not peer

    # --- messages ---

    def on_submit(self, peer, submit):
        if submit.number <= peer.mark:
            return  # taken before
        peer.mark = submit.number
        self.take_on(peer, submit)

    def take_on(self, peer, submit):
        key, held = name(submit.attempt), self.runs.get(name(submit.attempt))
        if submit.worker != ME:
            return self.turn_down(peer, submit.attempt, pb.CAUSE_WORKER_LOST)
        if held and held.owner is not peer and held.owner.gateway == peer.gateway:
            self.behind[key] = peer, submit
            return self.end(held, pb.CAUSE_ORPHANED)
        if held:
            return held.owner is peer or self.turn_down(peer, submit.attempt, pb.CAUSE_INVALID)
        if self.draining is not None:
            return self.turn_down(peer, submit.attempt, pb.CAUSE_SHUTDOWN)
        run = Run(submit, peer)
        early = [(other, other.tombstones.pop(key)) for other in self.peers.values() if key in other.tombstones]
        if early:
            for other, _ in early:
                self.turn_down(other, submit.attempt, early[0][1])
            return peer in dict(early) or self.turn_down(peer, submit.attempt, early[0][1])
        if not run.prompt or not 1 <= run.params.n <= 16 or run.most < 1:
            return self.turn_down(peer, submit.attempt, pb.CAUSE_INVALID)
        if len(run.prompt) >= CONTEXT or len(self.runs) >= UNITS:
            return self.turn_down(peer, submit.attempt, pb.CAUSE_OVER_LIMIT if len(run.prompt) >= CONTEXT else pb.CAUSE_QUEUE_FULL)
        self.runs[key], run.suspended = run, peer.suspended
        peer.say(accepted=pb.Accepted(attempt=run.id, prompt_tokens=len(run.prompt)))

    def turn_down(self, peer, attempt, cause, usage=None):
        outcome = pb.Outcome(cause=cause, kind=KINDS[cause])
        peer.say(ended=pb.Ended(attempt=attempt, outcome=outcome, usage=usage or pb.Usage()))
        peer.say(released=pb.Released(attempt=attempt, receipt=pb.Receipt()))

    def on_cancel(self, peer, cancel):
        run, key = self.runs.get(name(cancel.attempt)), name(cancel.attempt)
        if key in self.behind and self.behind[key][0] is peer and self.behind[key][1].number == cancel.number:
            del self.behind[key]
            peer.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt, won=cancel.cause))
            return self.turn_down(peer, cancel.attempt, cancel.cause)
        if run:
            run.told.add(peer)
            peer.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt, won=cancel.cause))
            return self.end(run, cancel.cause)
        if not 0 < cancel.number <= peer.mark and key not in peer.tombstones:
            if len(peer.tombstones) >= TOMBSTONES:
                return  # nobody may think that it counts: it comes again
            peer.tombstones[key] = cancel.cause
        peer.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt))

    def on_claim(self, peer, claim):
        for attempt in claim.attempts:
            run = self.runs.get(name(attempt))
            if run and run.owner.gateway == peer.gateway and run.owner is not peer:
                run.owner, run.suspended = peer, peer.suspended
                run.told.add(peer)

    def on_disclaim(self, peer, disclaim):
        for run in [self.runs.get(name(attempt)) for attempt in disclaim.attempts]:
            if run and run.owner.gateway == peer.gateway:
                self.end(run, pb.CAUSE_ORPHANED)

    def end(self, run, cause):
        """The first cause wins: an attempt of this worker holds nothing once it has ended, so both words come together."""
        if self.runs.pop(name(run.id), None):
            for peer in run.told:
                if self.peers.get(peer.gateway) is peer:
                    self.turn_down(peer, run.id, cause, pb.Usage(prompt=len(run.prompt), generated=run.made * run.params.n))
            if waiting := self.behind.pop(name(run.id), None):
                self.take_on(*waiting)

    # --- the engine: a step at a time, and before each a look at the leases ---

    async def run(self):
        while True:
            await asyncio.sleep(self.args.step_ms / 1000)
            self.look()
            self.step()

    def look(self):
        at = now()
        for peer in list(self.peers.values()):
            theirs = [run for run in self.runs.values() if run.owner is peer]
            if at >= min(peer.heard + SUSPEND, peer.echoed + 4 * SUSPEND) or len(peer.kept) > OUTBOX:
                peer.suspended = True
                for run in theirs:
                    run.suspended = True
            elif theirs and at >= peer.ask_at:
                peer.ask_at = at + ASK
                peer.say(ask=pb.Ask(attempts=[run.id for run in theirs][:NAMES]))
            if at >= peer.echoed + peer.lease and not peer.over:
                peer.over = True
                for run in theirs:
                    self.end(run, pb.CAUSE_ORPHANED)
            if at >= peer.echoed + 2 * peer.lease:
                del self.peers[peer.gateway]
        for before, until in [f for f in self.former if at >= f[1]]:
            for run in [run for run in self.runs.values() if run.owner is before]:
                self.end(run, pb.CAUSE_ORPHANED)
            self.former.remove((before, until))
        for run in list(self.runs.values()):
            if over := [cause for when, cause in run.deadlines if at >= when]:
                self.end(run, over[0])

    def step(self):
        going = [run for run in self.runs.values() if not run.suspended]
        self.steps += bool(going)
        deltas = collections.defaultdict(list)
        for run in going:
            token, run.made = run.prompt[run.made % len(run.prompt)], run.made + 1
            last = {"finish": pb.CAUSE_LENGTH} if run.made == run.most else {}
            text = chr(token) if token < 128 else "?"
            for sequence in range(run.params.n):
                deltas[run.owner].append(pb.Delta(attempt=run.id, sequence=sequence, text=text, tokens=[token], **last))
        for peer, theirs in deltas.items():
            peer.say(step=pb.Step(step=self.steps, deltas=theirs))
        for run in [run for run in going if run.made == run.most]:
            self.end(run, pb.CAUSE_LENGTH)

    # --- the two calls of their own ---

    async def Snapshot(self, request, context):
        states = {True: pb.ATTEMPT_STATE_SUSPENDED, False: pb.ATTEMPT_STATE_DECODING}
        attempts = [pb.AttemptCut(attempt=run.id, state=states[run.suspended], blocks=1) for run in self.runs.values()]
        going, active = sum(not run.suspended for run in self.runs.values()), len(self.runs)
        cut = pb.Snapshot(step=self.steps, block_tokens=CONTEXT, total=UNITS, free=UNITS - active, active=active, running=going, held=pb.Held())
        cut.queued, cut.held.attempts, cut.held.slots_total = active - going, active, UNITS
        cut.attempts.extend(attempts)
        return pb.SnapshotReply(worker=ME, snapshot=cut)

    async def Drain(self, request, context):
        self.draining, alive = now() + request.limit_us, list(self.runs.values())
        for peer in self.peers.values():
            peer.say(draining=pb.Draining())
        while any(name(run.id) in self.runs for run in alive) and now() < self.draining:
            await asyncio.sleep(self.args.step_ms / 1000)
        cut = [run for run in alive if name(run.id) in self.runs]
        for run in cut:
            self.end(run, pb.CAUSE_SHUTDOWN)
        finished = [run.id for run in alive if run not in cut]
        return pb.DrainReply(worker=ME, finished=finished, cancelled=[run.id for run in cut])


def kinds():
    groups = ["STOP LENGTH", "CLIENT_CLOSED CLIENT_RESET CLIENT_LOST CLIENT_STALLED CANCEL_REQUESTED EDGE_TIMEOUT ORPHANED SHUTDOWN"]
    groups += ["CLIENT_DEADLINE GATEWAY_DEADLINE WORKER_DEADLINE QUEUE_DEADLINE", "WORKER_ERROR DEVICE_ERROR WORKER_LOST UPSTREAM_ERROR"]
    groups += ["INVALID OVER_LIMIT QUEUE_FULL CANNOT_FIT DEADLINE_UNREACHABLE"]
    return {pb.Cause.Value("CAUSE_" + cause): kind for kind, group in enumerate(groups, 1) for cause in group.split()}


KINDS = kinds()


async def serve(args):
    worker = Worker(args)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", FRAME_BYTES)])
    rpc.add_WorkerServicer_to_server(worker, server)
    port = server.add_insecure_port(f"{args.host}:{args.port}")
    await server.start()
    print(f"worker {args.name} listening on grpc://{args.host}:{port}", flush=True)
    await worker.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A kvit worker that says its prompt again.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", default="python")
    parser.add_argument("--model", default="echo")
    parser.add_argument("--step-ms", type=int, default=20)
    asyncio.run(serve(parser.parse_args()))
