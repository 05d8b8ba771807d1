# A worker for kvit. It speaks kvit.worker.v1 and was written from session.proto alone; what any worker needs
# is in lanes.py. Its model says the prompt again; put yours into Attempt.

import argparse, asyncio, math

import grpc

from lanes import LIMITS, ME, S, Sessions, now, pb, rpc

ASK, STEP, TOMBSTONES, ATTEMPTS = 5 * S, S // 50, 1024, 64
MODEL = pb.Model(id="echo", context=4096, default_max_tokens=256)


def key(attempt):
    return attempt.tenant, attempt.run, attempt.attempt


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


class Worker(Sessions):
    def __init__(self, name):
        super().__init__(name, MODEL)
        self.attempts, self.steps = {}, 0
        self.stop_at, self.drained = math.inf, pb.DrainReply(worker=ME)

    # A tenure begins. The former one of the same life, if there was one, is over.
    def begin(self, gateway, former):
        gateway.mark, gateway.tombstones = former.mark if former else 0, {}
        gateway.ask_at = 0  # a new life is asked at once
        if self.stop_at < math.inf:
            gateway.say(draining=pb.Draining())
        for attempt in [one for one in self.attempts.values() if one.owner is former]:
            self.end(attempt, pb.CAUSE_ORPHANED)

    def submit(self, gateway, submit):
        name, attempt = key(submit.attempt), Attempt(submit, gateway)
        there, seen, gateway.mark = self.attempts.get(name), gateway.mark, max(gateway.mark, submit.number)
        if submit.number <= seen or there and there.owner is gateway:
            return
        if there and there.owner.name == gateway.name:
            there = self.end(there, pb.CAUSE_ORPHANED)  # an earlier life's
        early = {one: one.tombstones.pop(name) for one in self.gateways.values() if name in one.tombstones}
        refusals = {
            pb.CAUSE_WORKER_LOST: submit.worker != ME, pb.CAUSE_SHUTDOWN: self.stop_at < math.inf,
            pb.CAUSE_INVALID: there or not attempt.valid, pb.CAUSE_OVER_LIMIT: attempt.most < 1,
            pb.CAUSE_QUEUE_FULL: len(self.attempts) >= ATTEMPTS,
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
        if self.stop_at < math.inf and attempt in self.attempts.values():
            fresh = cause == pb.CAUSE_SHUTDOWN and not attempt.made
            fate = "finished" if cause <= pb.CAUSE_LENGTH else "handed_back" if fresh else "cancelled"
            getattr(self.drained, fate).append(attempt.id)
        self.attempts = {name: one for name, one in self.attempts.items() if one is not attempt}
        outcome = pb.Outcome(cause=cause, kind=1 + sum(cause > last for last in (2, 10, 14, 18)))
        usage = pb.Usage(prompt=len(attempt.prompt), generated=attempt.made * attempt.n)
        for gateway in {attempt.owner, *others}:  # whoever cancelled it is told, too
            gateway.say(ended=pb.Ended(attempt=attempt.id, outcome=outcome, usage=usage))
            gateway.say(released=pb.Released(attempt=attempt.id, receipt=pb.Receipt()))

    # One step of the engine. Leases, deadlines and questions are looked at before.
    def step(self):
        shutdown = pb.CAUSE_SHUTDOWN if now() >= self.stop_at else None
        for attempt in self.attempts.values():
            if cause := attempt.over() or shutdown:
                self.end(attempt, cause)
        self.forget()
        self.steps += 1
        for gateway in self.gateways.values():
            if self.of(gateway) and gateway.may_compute():
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

    async def Drain(self, request, context):
        if self.stop_at == math.inf:
            for gateway in self.gateways.values():
                gateway.say(draining=pb.Draining())
        self.stop_at = min(self.stop_at, now() + request.limit_us)
        while self.attempts:
            await asyncio.sleep(STEP / S)
        return self.drained

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
