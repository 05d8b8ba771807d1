"""What a worker knows of one life of one gateway: both lanes, and by whose echo it may compute. See LANES and LEASE in session.proto."""

import asyncio, collections, os, pathlib, sys, time

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "crates/protocol/proto"))
pb, rpc = grpc.protos_and_services("kvit/worker/v1/session.proto")

S = 1_000_000  # all times are in microseconds
HEARTBEAT, RESEND_AFTER, RESEND_PAUSE, SUSPEND, LEASE, ASK = S // 20, S // 5, S // 100, S // 4, 10 * S, 5 * S
WINDOW, OUTBOX = 512, 8192
ME = int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10)  # fresh in each life, and greater than in the one before


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000  # counts while the machine sleeps


class Lane:
    def __init__(self):
        self.kept, self.acknowledged = collections.deque(), 0  # what goes up; the first in `kept` has the number `acknowledged` + 1
        self.next, self.sent_at, self.again_at = 1, 0, 0
        self.received, self.missing = 0, False  # what comes down

    def acknowledge(self, received, missing, now):
        """The gateway has taken everything up to `received`; if `missing`, what is behind that came too early."""
        if 0 < received - self.acknowledged <= len(self.kept):
            for _ in range(received - self.acknowledged):
                self.kept.popleft()
            self.acknowledged, self.next, self.sent_at = received, max(self.next, received + 1), now
        if missing and now - self.again_at > RESEND_PAUSE:
            self.next, self.again_at = self.acknowledged + 1, now

    def take(self, number):
        """Whether it is this message's turn. One that came before, or comes too early, is thrown away."""
        self.missing |= number > self.received + 1
        if number != self.received + 1:
            return False
        self.received = number
        return True

    def due(self, now):
        """The messages that go out now, with their numbers: new ones, and again what is unacknowledged for too long."""
        if self.next > self.acknowledged + 1 and now - self.sent_at > RESEND_AFTER:
            self.next = self.acknowledged + 1
        if self.next == self.acknowledged + 1:
            self.sent_at = now
        first, self.next = self.next, min(self.acknowledged + len(self.kept), self.acknowledged + WINDOW) + 1
        return [(number, self.kept[number - self.acknowledged - 1]) for number in range(first, self.next)]


class Gateway:
    """One life of one gateway, in one tenure."""

    def __init__(self, hello, tenure, mark):
        self.name, self.life, self.tenure, self.mark = hello.gateway, hello.incarnation, tenure, mark  # `mark`: see Cancel.number
        self.lane, self.tombstones, self.lease = Lane(), {}, max(LEASE, hello.lease_us)
        self.echoed, self.ask_at, self.wake = now(), now() + ASK, asyncio.Event()

    def open(self, hello):
        self.session, self.heard, self.stamp = hello.session, now(), (hello.stamp_us, now())
        self.lane.acknowledge(hello.received, True, now())
        self.wake.set()  # a session that this one replaces ends

    def lease_until(self):
        return self.echoed + self.lease

    def is_heard_and_hears(self):
        return now() < min(self.heard + SUSPEND, self.echoed + 4 * SUSPEND, self.lease_until()) and len(self.lane.kept) <= OUTBOX

    def say(self, **message):
        self.lane.kept.append(message)
        self.wake.set()

    def hear(self, head):
        """Takes in a frame's head; says whether its message's turn has come."""
        self.heard = now()
        self.lane.acknowledge(head.received, head.missing, now())
        if head.stamp_us >= self.stamp[0]:
            self.stamp = head.stamp_us, now()
        if head.HasField("echo") and head.echo.stamp_us <= now():
            self.echoed = max(self.echoed, head.echo.stamp_us)
        if head.number:
            self.wake.set()  # what was heard is acknowledged at once
        return head.number > 0 and len(self.lane.kept) <= 2 * OUTBOX and self.lane.take(head.number)

    def frames(self):
        for number, message in self.lane.due(now()) or [(0, {})]:
            head = pb.Head(**{"from": ME}, to=self.life, tenure=self.tenure, number=number, received=self.lane.received)
            head.missing, head.stamp_us = self.lane.missing, now()
            head.echo.stamp_us, head.echo.held_us = self.stamp[0], now() - self.stamp[1]
            self.lane.missing = False
            yield pb.Up(frame=pb.UpFrame(head=head, **message))
