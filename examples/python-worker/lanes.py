# What a worker for kvit needs whatever it computes: sessions, lanes, leases, the check of required fields. It
# runs nothing and holds no model. Use it as it is: make your worker a `Sessions`, as worker.py does. It was
# written from session.proto alone, and words in capitals are chapters of that file.

import asyncio, collections, contextlib, itertools, os, pathlib, re, sys, time

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "crates/protocol/proto"))
pb, rpc = grpc.protos_and_services("kvit/worker/v1/session.proto")

S = 1_000_000  # all times are in microseconds
LEASE, RESEND_PAUSE, HELLO_TIMEOUT, OUTBOX, GATEWAYS = 10 * S, S // 100, 5 * S, 8192, 64
LIMITS = pb.Limits(frame_bytes_max=8 << 20, window=512, heartbeat_us=S // 20)
LIMITS.resend_after_us, LIMITS.suspend_after_us = S // 5, S // 4
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


# One life of one gateway in one tenure: its LANES and its LEASE.
class Gateway:
    def __init__(self, hello, tenure):
        self.name, self.lease = hello.gateway, max(LEASE, hello.lease_us)
        self.head = pb.Head(**{"from": ME}, to=hello.incarnation, tenure=tenure)  # of the next frame up
        self.kept, self.said, self.wake = collections.deque(), 0, asyncio.Event()
        self.stamp, self.echoed = (0, 0), now()

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

    # Puts a message into the lane up.
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

    # Whether the gateway hears and is heard, and has room.
    def may_compute(self):
        until = min(self.heard + LIMITS.suspend_after_us, self.echoed + 4 * LIMITS.suspend_after_us)
        return now() < until and len(self.kept) <= OUTBOX


# The sessions of all gateways. A worker adds a method for each message down (submit, cancel, claim, disclaim)
# that takes a gateway and the message, and begin(gateway, former): a tenure begins, and the former one of the
# same life, or None, is over. It answers by gateway.say, computes while gateway.may_compute(), and ends what
# it has for a gateway when that one's `echoed` + `lease` has come.
class Sessions(rpc.WorkerServicer):
    def __init__(self, name, model):
        self.name, self.model, self.gateways, self.tenures = name, model, {}, itertools.count(1)

    async def Session(self, requests, context):
        try:
            first = await asyncio.wait_for(anext(aiter(requests), pb.Down()), HELLO_TIMEOUT / S)
            gateway, session = self.open(check(first.hello)), first.hello.session
            welcome = pb.Welcome(version=1, worker=self.name, incarnation=ME, model=self.model, limits=LIMITS)
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
            gateway = self.gateways[hello.gateway] = Gateway(hello, next(self.tenures))
            if before:
                before.session = before.heard = 0  # ends its session, suspends its attempts
            self.begin(gateway, before if same_life else None)
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

    # Call it often: what nobody came back to for one more lease is forgotten.
    def forget(self):
        for gateway in list(self.gateways.values()):
            if now() >= gateway.echoed + 2 * gateway.lease:
                self.gateways.pop(gateway.name).session = 0
