# A worker for kvit in one file. It speaks kvit.worker.v1 and was written from session.proto alone: words in
# capitals below are chapters of that file. Its model says the prompt again; put yours into Attempt.

import argparse, asyncio, collections, contextlib, itertools, os, pathlib, re, sys, time

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "crates/protocol/proto"))
pb, rpc = grpc.protos_and_services("kvit/worker/v1/session.proto")

S = 1_000_000  # all times are in microseconds
LEASE, ASK, STEP, RESEND_PAUSE, HELLO_TIMEOUT = 10 * S, 5 * S, S // 50, S // 100, 5 * S
OUTBOX, GATEWAYS, TOMBSTONES, ATTEMPTS = 8192, 64, 1024, 64
LIMITS = pb.Limits(frame_bytes_max=8 << 20, window=512, heartbeat_us=S // 20)
LIMITS.resend_after_us, LIMITS.suspend_after_us = S // 5, S // 4
MODEL = pb.Model(id="echo", context=4096, default_max_tokens=256)
ME = int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10)  # grows from life to life
NAMES = {"gateway": 64, "tenant": 64, "run": 128}  # fields that are names, and how long they may be
REQUIRED = {  # what session.proto calls so, of all that comes down
    "DownFrame": "head", "Head": "from to tenure", "Hello": "versions gateway incarnation session lease_us",
    "Resume": "worker tenure", "Attempt": "tenant run attempt", "Deadline": "cause", "LogitBias": "bias",
    "Submit": "attempt worker number prompt params", "Params": "sampling n", "Cancel": "attempt cause",
    "Sampling": "temperature top_p min_p presence_penalty frequency_penalty repetition_penalty",
}  # fmt: skip
Code = grpc.StatusCode


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000  # counts while the machine sleeps


def key(attempt):
    return attempt.tenant, attempt.run, attempt.attempt


class Refused(Exception):
    """A session ends, with a code and words."""


def must(holds, words, code=Code.INVALID_ARGUMENT):
    if not holds:
        raise Refused(code, words)


# FIELDS: what is missing or not known is named and ends the session. It is never taken for something else.
def check(message):
    kind, fields = message.DESCRIPTOR.name, message.ListFields()
    there = {f.name for f, _ in fields} | {f.containing_oneof.name for f, _ in fields if f.containing_oneof}
    for name in REQUIRED.get(kind, "").split():
        must(name in there, f"{kind}.{name} is missing")
    for field, value in fields:
        known = not field.enum_type or value in field.enum_type.values_by_number
        life = field.type != field.TYPE_BYTES or len(value) == 16
        name = field.name not in NAMES or re.fullmatch(r"[\w.:~-]{1,%d}" % NAMES[field.name], value, re.ASCII)
        must(known and life and name, f"{kind}.{field.name} cannot be {value!r}")
        for one in [value] if hasattr(value, "DESCRIPTOR") else value if field.message_type else []:
            check(one)
    return message


# An attempt that is not released, and the model: a byte is a token, and the answer is the prompt again.
class Attempt:
    def __init__(self, submit, owner):
        self.id, self.owner, self.made, params = submit.attempt, owner, 0, submit.params
        text = submit.text.text + "".join(turn.content for turn in submit.chat.turns)
        self.prompt, self.n = list(submit.tokens.ids or text.encode()), params.n
        asked = params.max_tokens if params.HasField("max_tokens") else MODEL.default_max_tokens
        self.most = min(asked, MODEL.context - len(self.prompt))
        self.deadlines = sorted((now() + left.left_us, left.cause) for left in submit.deadlines)
        # What a model cannot do is never left out in silence.
        more = params.sampling.logit_bias or params.sampling.HasField("logprobs")
        cannot = more or params.stop or params.stop_token_ids
        self.valid = self.prompt and asked >= 1 and 1 <= self.n <= 16 and not cannot

    def step(self):
        token, self.made = self.prompt[self.made % len(self.prompt)], self.made + 1
        parts = {"attempt": self.id, "tokens": [token], "text": chr(token) if token < 128 else "?"}
        finish = pb.CAUSE_LENGTH if self.made == self.most else None
        return [pb.Delta(sequence=sequence, finish=finish, **parts) for sequence in range(self.n)]

    # The first of its deadlines that is over, or its owner's lease.
    def over(self):
        ends = [(self.owner.echoed + self.owner.lease, pb.CAUSE_ORPHANED), *self.deadlines]
        past = pb.CAUSE_QUEUE_DEADLINE if self.made else None
        return next((cause for at, cause in ends if now() >= at and cause != past), None)


# One life of one gateway in one tenure: its LANES and its LEASE.
class Gateway:
    def __init__(self, hello, tenure, mark):
        self.name, self.lease, self.mark = hello.gateway, max(LEASE, hello.lease_us), mark
        self.head = pb.Head(**{"from": ME}, to=hello.incarnation, tenure=tenure)  # of the next frame up
        self.kept, self.said, self.tombstones, self.wake = collections.deque(), 0, {}, asyncio.Event()
        self.stamp, self.echoed, self.ask_at = (0, 0), now(), 0  # a new life is asked at once

    # Takes in a frame's head, and says whether its message's turn has come. If not, it is thrown away.
    def hear(self, head):
        self.heard, self.stamp = now(), max(self.stamp, (head.stamp_us, now()))
        if head.echo.stamp_us <= now():
            self.echoed = max(self.echoed, head.echo.stamp_us)
        while self.kept and self.kept[0].head.number <= head.received <= self.said:
            self.kept.popleft()
        self.resend_after = RESEND_PAUSE if head.missing else self.resend_after
        self.head.missing |= head.number > self.head.received + 1
        turn = head.number == self.head.received + 1 and len(self.kept) <= 2 * OUTBOX
        self.head.received += turn
        return turn

    def say(self, **message):
        self.said += 1
        self.kept.append(pb.UpFrame(head=pb.Head(number=self.said), **message))
        self.wake.set()

    # What goes up now: what is new, what is unacknowledged for too long, or else a heartbeat.
    def frames(self):
        window, sent_before = itertools.islice(self.kept, LIMITS.window), now() - self.resend_after
        due = [frame for frame in window if frame.head.stamp_us < sent_before]
        self.resend_after = LIMITS.resend_after_us
        for frame in due or [pb.UpFrame()]:
            self.head.number, self.head.stamp_us = frame.head.number, now()
            self.head.echo.stamp_us, self.head.echo.held_us = self.stamp[0], now() - self.stamp[1]
            frame.head.CopyFrom(self.head)
            self.head.missing = False
            yield pb.Up(frame=frame)

    def may_compute(self):
        until = min(self.heard + LIMITS.suspend_after_us, self.echoed + 4 * LIMITS.suspend_after_us)
        return now() < until and len(self.kept) <= OUTBOX


class Worker(rpc.WorkerServicer):
    def __init__(self, name):
        self.name, self.gateways, self.attempts = name, {}, {}
        self.tenures, self.steps = itertools.count(1), 0

    async def Session(self, requests, context):
        try:
            first = await asyncio.wait_for(anext(aiter(requests), pb.Down()), HELLO_TIMEOUT / S)
            gateway, session = self.open(check(first.hello)), first.hello.session
            welcome = pb.Welcome(version=1, worker=self.name, incarnation=ME, model=MODEL, limits=LIMITS)
            welcome.tenure, welcome.received = gateway.head.tenure, gateway.head.received
            welcome.lease_us, welcome.stamp_us = gateway.lease, now()
            yield pb.Up(welcome=welcome)
            reader = asyncio.create_task(self.read(gateway, session, requests))
            while gateway.session == session and not reader.done():
                gateway.wake.clear()
                for frame in gateway.frames():
                    yield frame
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(gateway.wake.wait(), LIMITS.heartbeat_us / S)
            reader.cancel()
            must(reader.done(), "a newer session has taken this one's place", Code.CANCELLED)
            reader.result()
        except TimeoutError:
            await context.abort(Code.DEADLINE_EXCEEDED, "no Hello came in time")
        except Refused as why:
            await context.abort(*why.args)

    # Goes on with the gateway's tenure, or begins a new one.
    def open(self, hello):
        theirs, before = ", ".join(map(str, sorted(set(hello.versions)))), self.gateways.get(hello.gateway)
        words = f"no common protocol version: the gateway speaks {theirs}; the worker speaks 1"
        must(1 in hello.versions, words, Code.FAILED_PRECONDITION)
        must(before or len(self.gateways) < GATEWAYS, "no room for another gateway", Code.RESOURCE_EXHAUSTED)
        newest = (before.head.to, before.session) if before else (b"", 0)
        must((hello.incarnation, hello.session) > newest, "a newer life or session was here", Code.ABORTED)
        gateway, same_life = before, newest[0] == hello.incarnation
        if not same_life or hello.resume != pb.Resume(worker=ME, tenure=before.head.tenure):
            gateway = Gateway(hello, next(self.tenures), before.mark if same_life else 0)
            self.gateways[hello.gateway] = gateway
            if before:
                before.session = before.heard = 0  # ends its session, suspends its attempts
            for attempt in [one for one in self.attempts.values() if same_life and one.owner is before]:
                self.end(attempt, pb.CAUSE_ORPHANED)
        gateway.session, gateway.resend_after = hello.session, 0
        gateway.hear(pb.Head(received=hello.received, stamp_us=hello.stamp_us))
        return gateway

    async def read(self, gateway, session, requests):
        async for down in requests:
            head, kind = check(down.frame).head, down.frame.WhichOneof("message")
            must(bool(kind) == bool(head.number), "DownFrame.message: only a known one has a number")
            ours = (getattr(head, "from"), head.to, head.tenure) == (gateway.head.to, ME, gateway.head.tenure)
            if ours and gateway.session == session and gateway.hear(head):
                getattr(self, kind)(gateway, getattr(down.frame, kind))

    def submit(self, gateway, submit):
        name, attempt = key(submit.attempt), Attempt(submit, gateway)
        there, seen, gateway.mark = self.attempts.get(name), gateway.mark, max(gateway.mark, submit.number)
        if submit.number <= seen or there and there.owner is gateway:
            return
        if there and there.owner.name == gateway.name:
            there = self.end(there, pb.CAUSE_ORPHANED)  # an earlier life's
        early = {one: one.tombstones.pop(name) for one in self.gateways.values() if name in one.tombstones}
        refusals = {
            pb.CAUSE_WORKER_LOST: submit.worker != ME, pb.CAUSE_INVALID: there or not attempt.valid,
            pb.CAUSE_OVER_LIMIT: attempt.most < 1, pb.CAUSE_QUEUE_FULL: len(self.attempts) >= ATTEMPTS,
        }  # fmt: skip
        causes = [*early.values(), *(cause for cause, holds in refusals.items() if holds)]
        if causes:
            return self.end(attempt, causes[0], *early)
        self.attempts[name] = attempt
        gateway.say(accepted=pb.Accepted(attempt=attempt.id, prompt_tokens=len(attempt.prompt)))

    def cancel(self, gateway, cancel):
        attempt = self.attempts.get(key(cancel.attempt))
        if not attempt and not 0 < cancel.number <= gateway.mark:  # its Submit is still to come
            if len(gateway.tombstones) >= TOMBSTONES:
                return  # nobody may think that it counts: it comes again
            gateway.tombstones.setdefault(key(cancel.attempt), cancel.cause)
        won = cancel.cause if attempt else None
        gateway.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt, won=won))
        if attempt:
            self.end(attempt, cancel.cause, gateway)

    # Attempts of a gateway's name: its own, and those of its former life.
    def of(self, gateway):
        return [attempt for attempt in self.attempts.values() if attempt.owner.name == gateway.name]

    def claim(self, gateway, claim):
        for attempt in [one for one in self.of(gateway) if one.id in claim.attempts]:
            attempt.owner = gateway

    def disclaim(self, gateway, disclaim):
        for attempt in [one for one in self.of(gateway) if one.id in disclaim.attempts]:
            self.end(attempt, pb.CAUSE_ORPHANED)

    # An attempt at this model holds nothing once it has ended, so both words come together.
    def end(self, attempt, cause, *others):
        self.attempts = {name: one for name, one in self.attempts.items() if one is not attempt}
        outcome = pb.Outcome(cause=cause, kind=1 + sum(cause > last for last in (2, 10, 14, 18)))
        usage = pb.Usage(prompt=len(attempt.prompt), generated=attempt.made * attempt.n)
        for gateway in {attempt.owner, *others}:  # whoever cancelled it is told, too
            gateway.say(ended=pb.Ended(attempt=attempt.id, outcome=outcome, usage=usage))
            gateway.say(released=pb.Released(attempt=attempt.id, receipt=pb.Receipt()))

    # One step of the engine. Leases, deadlines and questions are looked at before.
    def step(self):
        for attempt in self.attempts.values():
            if cause := attempt.over():
                self.end(attempt, cause)
        self.steps += 1
        for gateway in list(self.gateways.values()):
            if now() >= gateway.echoed + 2 * gateway.lease:
                self.gateways.pop(gateway.name).session = 0  # nobody comes back
            elif self.of(gateway) and gateway.may_compute():
                self.compute(gateway)

    def compute(self, gateway):
        if now() >= gateway.ask_at:
            gateway.ask_at = now() + ASK
            gateway.say(ask=pb.Ask(attempts=[attempt.id for attempt in self.of(gateway)]))
        going = [attempt for attempt in self.of(gateway) if attempt.owner is gateway]
        deltas = [delta for attempt in going for delta in attempt.step()]
        if deltas:
            gateway.say(step=pb.Step(step=self.steps, deltas=deltas))
        for attempt in [one for one in going if one.made == one.most]:
            self.end(attempt, pb.CAUSE_LENGTH)

    async def Snapshot(self, request, context):
        cut = pb.Snapshot(step=self.steps, total=ATTEMPTS, held=pb.Held(attempts=len(self.attempts)))
        for one in self.attempts.values():
            state = pb.ATTEMPT_STATE_DECODING if one.owner.may_compute() else pb.ATTEMPT_STATE_SUSPENDED
            cut.attempts.add(attempt=one.id, state=state, blocks=1)
        cut.active, cut.free = len(self.attempts), ATTEMPTS - len(self.attempts)
        cut.running = sum(one.owner.may_compute() for one in self.attempts.values())
        cut.tombstones = sum(len(gateway.tombstones) for gateway in self.gateways.values())
        return pb.SnapshotReply(worker=ME, snapshot=cut)

    async def serve(self, address):
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", LIMITS.frame_bytes_max)])
        rpc.add_WorkerServicer_to_server(self, server)
        port = server.add_insecure_port(address)
        await server.start()
        print(f"listening on {address.rpartition(':')[0]}:{port}", flush=True)
        while True:
            await asyncio.sleep(STEP / S)
            self.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A kvit worker that says its prompt again.")
    parser.add_argument("--listen", default="127.0.0.1:7070", help="HOST:PORT; port 0 takes a free one")
    parser.add_argument("--name", default="python")
    args = parser.parse_args()
    asyncio.run(Worker(args.name).serve(args.listen))
