"""Workers that are wrong in one way each, made of the good one in examples/python-worker. The conformance test must find each.

    python broken_workers.py NAME        listens on a free port

What a twin does wrong in the methods of `Gateway` is in its `gateways_too`.
"""

import asyncio
import math
import pathlib
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python-worker"
sys.path.insert(0, str(EXAMPLE))

import lanes  # noqa: E402
import worker as good  # noqa: E402

pb, Gateway = lanes.pb, lanes.Gateway
# So that what waits for a lease or a question does not take long.
lanes.LEASE, good.ASK = 2 * lanes.S, lanes.S


class TokenAfterCancel(good.Worker):
    """Says a token between the acknowledgement and the end."""

    finds = "cancels/in_decode"

    def end(self, attempt, cause, *others):
        if cause == pb.CAUSE_CLIENT_CLOSED:
            self.steps += 1
            attempt.made += 1
            delta = pb.Delta(attempt=attempt.id, text="x", tokens=[1])
            attempt.owner.say(step=pb.Step(step=self.steps, deltas=[delta]))
        super().end(attempt, cause, *others)


class ForgetsReleased(good.Worker):
    """Says Ended and not Released."""

    finds = "attempts/one_answer"

    def end(self, attempt, cause, *others):
        super().end(attempt, cause, *others)
        for gateway in {attempt.owner, *others}:
            gateway.kept.pop()
            gateway.said -= 1


class ReleasedFirst(good.Worker):
    """Says Released before Ended."""

    finds = "attempts/one_answer"

    def end(self, attempt, cause, *others):
        super().end(attempt, cause, *others)
        for gateway in {attempt.owner, *others}:
            released, ended = gateway.kept.pop(), gateway.kept.pop()
            released.head.number, ended.head.number = ended.head.number, released.head.number
            gateway.kept.extend([released, ended])


class TakesASubmitTwice(good.Worker):
    """A second submit of a name runs beside the first."""

    finds = "submits/twice_with_one_number"

    def submit(self, gateway, submit):
        gateway.mark = 0
        if running := self.attempts.pop(good.key(submit.attempt), None):
            self.attempts[id(running)] = running
        super().submit(gateway, submit)


class RunsAnothersSubmit(good.Worker):
    """Takes on what is meant for another life of the worker."""

    finds = "submits/for_another_life_of_the_worker"

    def submit(self, gateway, submit):
        submit.worker = lanes.ME
        super().submit(gateway, submit)


class IgnoresTheLease(good.Worker):
    """Never ends an orphan."""

    finds = "silence/lease_over"

    def step(self):
        for attempt in self.attempts.values():
            attempt.owner.lease = 2**62
        super().step()


class HearingIsEnough(good.Worker):
    """Counts the lease from what it hears, and not from what its gateway has heard."""

    finds = "silence/lease_over_of_a_deaf_gateway"

    def step(self):
        for gateway in self.gateways.values():
            gateway.echoed = max(gateway.echoed, gateway.heard)
        super().step()


class ForgetsTooEarly(good.Worker):
    """Forgets a tenure with its lease."""

    finds = "silence/lease_over"

    def step(self):
        super().step()
        for gateway in list(self.gateways.values()):
            if lanes.now() >= gateway.echoed + gateway.lease:
                del self.gateways[gateway.name]


class NeverSuspends(good.Worker):
    """Computes on for a gateway that is silent."""

    finds = "silence/silent_gateway_is_suspended"

    gateways_too = {"may_compute": lambda gateway: True}


class HearsTheDeaf(good.Worker):
    """Computes on for a gateway that speaks and does not hear."""

    finds = "silence/deaf_gateway_is_suspended"

    gateways_too = {"may_compute": lambda gateway: lanes.now() < gateway.heard + lanes.LIMITS.suspend_after_us}


class SuspendsEverybody(good.Worker):
    """One silent gateway holds up all."""

    finds = "silence/silent_gateway_is_suspended"

    def compute(self, gateway):
        if all(attempt.owner.may_compute() for attempt in self.attempts.values()):
            super().compute(gateway)


class KeepsNoTombstone(good.Worker):
    """Forgets a cancel that came before its submit."""

    finds = "early/cancel_before_its_submit"

    def cancel(self, gateway, cancel):
        super().cancel(gateway, cancel)
        gateway.tombstones.clear()


class KeepsEveryTombstone(good.Worker):
    """Keeps a tombstone of an attempt that is over."""

    finds = "early/no_tombstone_below_the_mark"

    def cancel(self, gateway, cancel):
        cancel.number = 0
        super().cancel(gateway, cancel)


class OwnersCancelOnly(good.Worker):
    """Does not take a cancel from another gateway."""

    finds = "cancels/by_another_gateway"

    def cancel(self, gateway, cancel):
        attempt = self.attempts.get(good.key(cancel.attempt))
        if attempt and attempt.owner is not gateway:
            return gateway.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt, won=cancel.cause))
        super().cancel(gateway, cancel)


class EndsTwice(good.Worker):
    """A second cancel brings a second end."""

    finds = "cancels/twice"
    ended = None

    def cancel(self, gateway, cancel):
        attempt = self.attempts.get(good.key(cancel.attempt))
        if self.ended and self.ended.id == cancel.attempt:
            self.end(self.ended, cancel.cause)
        super().cancel(gateway, cancel)
        self.ended = attempt


class IgnoresDeadlines(good.Worker):
    """Leaves deadlines to the gateway."""

    finds = "times/deadline_in_decode"

    def submit(self, gateway, submit):
        del submit.deadlines[:]
        super().submit(gateway, submit)


class OneTokenMore(good.Worker):
    """Generates one token more than it may."""

    finds = "attempts/one_answer"

    def submit(self, gateway, submit):
        submit.params.max_tokens += 1
        super().submit(gateway, submit)


class TakesWhatComesEarly(good.Worker):
    """Takes messages in the order in which they come."""

    finds = "lanes/early_down"

    def hear(gateway, head, hear=Gateway.hear):
        gateway.head.received = max(gateway.head.received, head.number - 1)
        return hear(gateway, head)

    gateways_too = {"hear": hear}


class NeverSendsAgain(good.Worker):
    """Sends each message once."""

    finds = "lanes/lost_up"

    def frames(gateway, frames=Gateway.frames):
        gateway.resend_after = lanes.now() - 1
        return frames(gateway)

    gateways_too = {"frames": frames}


class LosesWhatWasOnItsWay(good.Worker):
    """Forgets with a session what it has not delivered."""

    finds = "sessions/cut_and_resumed"

    def open(self, hello):
        gateway = super().open(hello)
        gateway.kept.clear()
        return gateway


class SilenceIsDisclaim(good.Worker):
    """Takes an attempt that is missing from a claim for an orphan."""

    finds = "orphans/missing_from_an_answer"

    def claim(self, gateway, claim):
        for attempt in self.of(gateway):
            if attempt.id not in claim.attempts:
                self.end(attempt, pb.CAUSE_ORPHANED)
        super().claim(gateway, claim)


class AnybodyDisclaims(good.Worker):
    """Ends what another gateway than the owner disclaims."""

    finds = "orphans/claim_and_disclaim_of_others"

    def disclaim(self, gateway, disclaim):
        for named in disclaim.attempts:
            if attempt := self.attempts.get(good.key(named)):
                self.end(attempt, pb.CAUSE_ORPHANED)


class NewLifeOwnsAll(good.Worker):
    """Gives a new life what the former one had, and does not ask."""

    finds = "orphans/new_life_is_asked"

    def open(self, hello):
        gateway = super().open(hello)
        gateway.ask_at = 2**62
        for attempt in self.of(gateway):
            attempt.owner = gateway
        return gateway


class MiscountsBlocks(good.Worker):
    """Its account does not add up."""

    finds = "account/adds_up_and_names_what_runs"

    async def Snapshot(self, request, context):
        reply = await super().Snapshot(request, context)
        reply.snapshot.free = good.ATTEMPTS
        return reply


class TakesOnWhileItStops(good.Worker):
    """Goes on to take attempts when it was told to stop."""

    finds = "drain/told_to_stop"

    def submit(self, gateway, submit):
        stop_at, self.stop_at = self.stop_at, math.inf
        super().submit(gateway, submit)
        self.stop_at = stop_at


class ForgetsWhatBecameOfThem(good.Worker):
    """Answers Drain without what it cut short."""

    finds = "drain/told_to_stop"

    async def Drain(self, request, context):
        reply = await super().Drain(request, context)
        del reply.cancelled[:]
        return reply


BROKEN = {twin.__name__: twin for twin in good.Worker.__subclasses__()}

if __name__ == "__main__":
    twin = BROKEN[sys.argv[1]]
    for name, method in getattr(twin, "gateways_too", {}).items():
        setattr(Gateway, name, method)
    asyncio.run(twin("broken").serve("127.0.0.1:0"))
