"""The cells of `bench/upstream_beside.py`: a caller leaves an engine behind any gateway, and only the engine itself says what follows.

A phase is entered by what can be seen without a gateway's word: what the caller has read, and the engine. Before headers means right behind
the last byte of the request. Queued means that others of the same gateway have all slots of the engine, and the caller waited for a while.

The engine is looked at every LOOK_S after the leaving, in the way that its class knows as the one that does not change what it does. A
request is gone with the first look that does not show it, if the looks of the next SURE_S do not either, for a gateway may send late; and
if the engine's counters, looked at then, say the same. A request that was queued is looked for among those that wait, while the others run.

Invariant: nothing that is asserted here is what a gateway says of itself.
"""

import dataclasses
import statistics
import time

from upstream_cells import EARLY, LATE, MAX_TOKENS, QUEUED, Cells, Missed

PHASES = [QUEUED, "before headers", "prefill", "early decode", "late decode"]
WAYS = ["close", "RST"]
LOOK_S = 0.25
WAIT_S = 0.5  # a caller that is queued, twice
SURE_S = 1.0
GONE_LIMIT_S = 120
TRIES_EACH = 6
WORDS_FEW = 10  # of a prompt that is only there to be answered
FILLERS_S = 4  # how long those run that have all slots
FILLER_TOKENS_MIN, FILLER_TOKENS_MAX = 150, 1500
WHOLE = MAX_TOKENS - 1  # a token that ends an answer may be counted in another place

NEVER, GONE, STAYED, TO_ITS_END = "never came", "gone", "till a slot was free", "to its end"


@dataclasses.dataclass
class Try:
    """What became of one request that was left."""

    gateway: str
    phase: str
    stream: bool
    way: str
    outcome: str = ""
    there: float | None = None  # seconds from the leaving to the last look that counted it
    seconds: float | None = None  # and to the end of the first one that did not
    more: int = 0  # tokens that were generated and that the caller had not read, or the engine had not shown, when it left
    missed: int = 0


def outcome(queued, came, gone, tokens):
    """In one word. `gone`: it was seen to leave; `tokens`: what the engine generated for it."""
    if tokens >= WHOLE:
        return TO_ITS_END
    if not came:
        return NEVER
    return STAYED if queued and not gone else GONE


class Outside(Cells):
    """The cells of one engine behind one gateway, from outside."""

    def __init__(self, engine, gateway, slots, words, fillers, say):
        super().__init__(engine, gateway, slots, say)
        self.words, self.fillers = words, fillers

    def tried(self, phase, stream, way):
        """One try that entered the phase, if one of several did."""
        for missed in range(TRIES_EACH):
            self.engine.idle()
            self.engine.begin()
            try:
                found = self.left_queued(stream, way) if phase == QUEUED else self.left(phase, stream, way)
            except Missed as why:
                self.say(f"  {self.gateway.kind}, {phase}, {way}: {why}; again")
                continue
            found.missed = missed
            return found
        return None

    def enter(self, phase, caller, stream):
        """As for a gateway that tells of its runs, but for what only that would tell. Returns the tokens that were seen."""
        if phase == "before headers":
            return 0
        if phase == "prefill":
            if self.watch(caller, lambda working, generated: working > 0) > 0:
                raise Missed(True, "the engine had a token")
            return 0
        if stream:
            super().enter(phase, caller, stream)
            return caller.tokens
        least = EARLY if phase == "early decode" else LATE
        return self.watch(caller, lambda _, generated: generated >= least)

    def left(self, phase, stream, way):
        found = Try(self.gateway.kind, phase, stream, way)
        before = self.engine.totals()
        words = WORDS_FEW if phase.endswith("decode") else self.words
        caller = self.call("left", stream, words, MAX_TOKENS)
        seen = self.enter(phase, caller, stream)
        caller.leave(way)
        left = time.monotonic()
        self.was_in(phase, caller)
        found.there, found.seconds = self.gone(left, self.engine.busy)
        now = self.engine.totals()
        tokens = now[1] - before[1]
        found.more = max(0, tokens - seen)
        came = phase != "before headers" or found.there is not None or now != before
        found.outcome = outcome(False, came, True, tokens)
        return found

    def left_queued(self, stream, way):
        found = Try(self.gateway.kind, QUEUED, stream, way)
        before = self.engine.totals()
        fillers = [self.call("filler", True, WORDS_FEW, self.fillers) for _ in range(self.slots)]
        for filler in fillers:
            if not filler.read_until(lambda filler=filler: filler.tokens >= 1):
                raise RuntimeError(f"{self.gateway.kind}: a request was answered {filler.answer.status} {filler.answer.body[-300:]!r}")
        caller = self.call("queued", stream, WORDS_FEW, MAX_TOKENS)
        waited = []
        for _ in range(2):
            caller.read(WAIT_S)
            waited.append(self.engine.waiting())
        if caller.tokens or any_over(fillers):
            raise Missed(True, "a slot was free")
        caller.leave(way)
        left = time.monotonic()
        if any(waited):
            found.there, found.seconds = self.gone(left, self.engine.waiting, lambda: any_over(fillers))
        for filler in fillers:
            filler.read_until(lambda filler=filler: filler.over)
        usages = [filler.usage() for filler in fillers]
        # One that was sent only now is there a moment after the slot is free.
        self.gone(left, self.engine.busy)
        tokens = self.engine.totals()[1] - before[1] - sum(usage[2] for usage in usages)
        found.more = max(0, tokens)
        found.outcome = outcome(True, any(waited) or tokens > 0, found.seconds is not None, tokens)
        return found

    def gone(self, left, there, enough=lambda: False):
        """(beginning of the last look that showed it, end of the first one that did not), in seconds from `left`. The second is missing if
        it was `enough` before; else the engine's counters have the last word."""
        last, gone = None, None
        while True:
            began = time.monotonic() - left
            seen = there()
            ended = time.monotonic() - left
            if enough():
                return last, None
            if seen:
                last, gone = began, None
            elif gone is None:
                gone = ended
            elif ended - gone >= SURE_S:
                if there == self.engine.waiting or self.engine.present() == 0:
                    return last, gone
                last, gone = began, None
            if ended > GONE_LIMIT_S:
                raise RuntimeError(f"{self.gateway.kind}: the engine still has a request {GONE_LIMIT_S} s after its caller left")
            time.sleep(max(0.0, began + LOOK_S - ended))


def any_over(fillers):
    """Whether one of them has ended. Reads what has come, so that nobody waits for a reader."""
    for filler in fillers:
        filler.read(0)
    return any(filler.over for filler in fillers)


def fillers(at, slots):
    """Tokens of each of so many streams at once that they run long enough, from the marks of one alone."""
    speed = (MAX_TOKENS - LATE) / max(at["end"] - at["late"], 0.01)
    return max(FILLER_TOKENS_MIN, min(FILLER_TOKENS_MAX, int(speed * FILLERS_S / max(1, slots - 1))))


def rank(found):
    """By which of two tries the engine was rid of the request sooner, in seconds."""
    if found["outcome"] == NEVER:
        return 0.0
    return float("inf") if found["seconds"] is None else found["seconds"]


def median(tries):
    """The median try's rank."""
    return statistics.median_low(map(rank, tries))
