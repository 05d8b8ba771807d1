"""Workers that are wrong in one way each, made of the good one in examples/python-worker. The conformance test must find each.

    python broken_workers.py NAME        listens on a free port
"""

import asyncio
import pathlib
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python-worker"
sys.path.insert(0, str(EXAMPLE))

import gateway as lanes  # noqa: E402
import worker as good  # noqa: E402

pb, Gateway, Lane = lanes.pb, lanes.Gateway, lanes.Lane
# So that what waits for a lease or a question does not take long.
lanes.LEASE, good.ASK = 2 * lanes.S, lanes.S


class TokenAfterCancel(good.Worker):
    """Says a token between the acknowledgement and the end."""

    finds = "cancels/in_decode"

    def end(self, run, cause):
        if cause == pb.CAUSE_CLIENT_CLOSED:
            self.steps += 1
            run.made += 1
            delta = pb.Delta(attempt=run.id, text="x", tokens=[1])
            run.owner.say(step=pb.Step(step=self.steps, deltas=[delta]))
        super().end(run, cause)


class ForgetsReleased(good.Worker):
    """Says Ended and not Released."""

    finds = "attempts/one_answer"

    def over(self, told, attempt, cause, usage=pb.Usage()):
        for gateway in told:
            gateway.say(ended=pb.Ended(attempt=attempt, outcome=good.outcome(cause), usage=usage))


class ReleasedFirst(good.Worker):
    """Says Released before Ended."""

    finds = "attempts/one_answer"

    def over(self, told, attempt, cause, usage=pb.Usage()):
        super().over(told, attempt, cause, usage)
        for gateway in told:
            gateway.lane.kept[-1], gateway.lane.kept[-2] = gateway.lane.kept[-2], gateway.lane.kept[-1]


class TakesASubmitTwice(good.Worker):
    """A second submit of a name runs beside the first."""

    finds = "submits/twice_with_one_number"

    def on_submit(self, gateway, submit):
        gateway.mark = 0
        if running := self.runs.pop(good.key(submit.attempt), None):
            self.runs[id(running)] = running
        super().on_submit(gateway, submit)


class RunsAnothersSubmit(good.Worker):
    """Takes on what is meant for another life of the worker."""

    finds = "submits/for_another_life_of_the_worker"

    def on_submit(self, gateway, submit):
        submit.worker = lanes.ME
        super().on_submit(gateway, submit)


class IgnoresTheLease(good.Worker):
    """Never ends an orphan."""

    finds = "silence/lease_over"

    def look(self):
        for gateway in self.gateways.values():
            gateway.lease_until = lambda: 2**62
        super().look()


class HearingIsEnough(good.Worker):
    """Counts the lease from what it hears, and not from what its gateway has heard."""

    finds = "silence/lease_over_of_a_deaf_gateway"

    def look(self):
        for gateway in self.gateways.values():
            gateway.echoed = max(gateway.echoed, gateway.heard)
        super().look()


class ForgetsTooEarly(good.Worker):
    """Forgets a tenure with its lease."""

    finds = "silence/lease_over"

    def look(self):
        super().look()
        for gateway in list(self.gateways.values()):
            if good.now() >= gateway.lease_until():
                del self.gateways[gateway.name]


class NeverSuspends(good.Worker):
    """Computes on for a gateway that is silent."""

    finds = "silence/silent_gateway_is_suspended"

    def suspended(self, run):
        return False


class HearsTheDeaf(good.Worker):
    """Computes on for a gateway that speaks and does not hear."""

    finds = "silence/deaf_gateway_is_suspended"

    def suspended(self, run):
        return good.now() >= run.owner.heard + lanes.SUSPEND


class SuspendsEverybody(good.Worker):
    """One silent gateway holds up all."""

    finds = "silence/silent_gateway_is_suspended"

    def suspended(self, run):
        return any(super(SuspendsEverybody, self).suspended(other) for other in self.runs.values())


class KeepsNoTombstone(good.Worker):
    """Forgets a cancel that came before its submit."""

    finds = "early/cancel_before_its_submit"

    def on_cancel(self, gateway, cancel):
        super().on_cancel(gateway, cancel)
        gateway.tombstones.clear()


class KeepsEveryTombstone(good.Worker):
    """Keeps a tombstone of an attempt that is over."""

    finds = "early/no_tombstone_below_the_mark"

    def on_cancel(self, gateway, cancel):
        cancel.number = 0
        super().on_cancel(gateway, cancel)


class OwnersCancelOnly(good.Worker):
    """Does not take a cancel from another gateway."""

    finds = "cancels/by_another_gateway"

    def on_cancel(self, gateway, cancel):
        run = self.runs.get(good.key(cancel.attempt))
        if run and run.owner is not gateway:
            return gateway.say(cancel_acknowledged=pb.CancelAcknowledged(attempt=cancel.attempt, won=cancel.cause))
        super().on_cancel(gateway, cancel)


class EndsTwice(good.Worker):
    """A second cancel brings a second end."""

    finds = "cancels/twice"
    ended = None

    def on_cancel(self, gateway, cancel):
        again = good.key(cancel.attempt) == self.ended
        self.ended = good.key(cancel.attempt)
        super().on_cancel(gateway, cancel)
        if again:
            self.over({gateway}, cancel.attempt, cancel.cause)


class IgnoresDeadlines(good.Worker):
    """Leaves deadlines to the gateway."""

    finds = "times/deadline_in_decode"

    def on_submit(self, gateway, submit):
        del submit.deadlines[:]
        super().on_submit(gateway, submit)


class OneTokenMore(good.Worker):
    """Generates one token more than it may."""

    finds = "attempts/one_answer"

    def on_submit(self, gateway, submit):
        submit.params.max_tokens += 1
        super().on_submit(gateway, submit)


class TakesWhatComesEarly(good.Worker):
    """Takes messages in the order in which they come."""

    finds = "lanes/early_down"


class NeverSendsAgain(good.Worker):
    """Sends each message once."""

    finds = "lanes/lost_up"


class LosesWhatWasOnItsWay(good.Worker):
    """Forgets with a session what it has not delivered."""

    finds = "sessions/cut_and_resumed"


class SilenceIsDisclaim(good.Worker):
    """Takes an attempt that is missing from a claim for an orphan."""

    finds = "orphans/missing_from_an_answer"

    def on_claim(self, gateway, claim):
        named = {good.key(attempt) for attempt in claim.attempts}
        for name, run in list(self.runs.items()):
            if run.owner.name == gateway.name and name not in named:
                self.end(run, pb.CAUSE_ORPHANED)
        super().on_claim(gateway, claim)


class AnybodyDisclaims(good.Worker):
    """Ends what another gateway than the owner disclaims."""

    finds = "orphans/claim_and_disclaim_of_others"

    def on_disclaim(self, gateway, disclaim):
        for attempt in disclaim.attempts:
            if run := self.runs.get(good.key(attempt)):
                self.end(run, pb.CAUSE_ORPHANED)


class NewLifeOwnsAll(good.Worker):
    """Gives a new life what the former one had, and does not ask."""

    finds = "orphans/new_life_is_asked"

    def begin(self, hello, before):
        gateway = super().begin(hello, before)
        gateway.lane.kept.clear()
        for run in self.runs.values():
            if run.owner.name == gateway.name:
                run.owner = gateway
        return gateway


class MiscountsBlocks(good.Worker):
    """Its account does not add up."""

    finds = "account/adds_up_and_names_what_runs"

    async def Snapshot(self, request, context):
        reply = await super().Snapshot(request, context)
        reply.snapshot.free = good.UNITS
        return reply


def take_early(lane, number):
    taken, lane.received = number > lane.received, max(lane.received, number)
    return taken


def due_once(lane, now):
    lane.missing, lane.sent_at = False, now
    first, lane.next = max(lane.next, getattr(lane, "newest", 0) + 1), lane.acknowledged + len(lane.kept) + 1
    lane.newest = lane.next - 1
    return [(number, lane.kept[number - lane.acknowledged - 1]) for number in range(first, lane.next)]


def open_empty(gateway, hello, opens=Gateway.open):
    opens(gateway, hello)
    gateway.lane.kept.clear()


BROKEN = {twin.__name__: twin for twin in good.Worker.__subclasses__()}

if __name__ == "__main__":
    twin = BROKEN[sys.argv[1]]
    if twin is TakesWhatComesEarly:
        Lane.take = take_early
    if twin is NeverSendsAgain:
        Lane.due = due_once
    if twin is LosesWhatWasOnItsWay:
        Gateway.open = open_empty
    asyncio.run(good.serve(twin("broken", 20), "127.0.0.1:0"))
