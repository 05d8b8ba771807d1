"""The cells of `bench/upstreams.py`: in which phase a caller leaves, how, and what has to be true afterwards.

A phase is entered by what is seen: the run's own record, what the caller has read, one look at the engine. Nothing waits for a time alone.
A deadline cannot be told to fall into a phase, so it is set by how long the phases took before, and where it fell is looked at afterwards;
one that missed is tried again, earlier or later.

Invariant: a cell is done only if its phase was seen and everything that it asserts holds. After the caller has left, the engine is looked
at once, when the run has settled, and not before.
"""

import collections
import concurrent.futures
import dataclasses
import threading
import time

from upstream_caller import Caller, Names

WAYS = ["close", "RST", "cancel", "deadline"]
CAUSES = {"close": "client_closed", "RST": "client_reset", "cancel": "cancel_requested", "deadline": "client_deadline"}
QUEUED = "queued"
LONG = "long prefill"
PHASES = [QUEUED, "before headers", "headers, no token", "prefill", LONG, "early decode", "late decode"]
NO_TOKEN = ("before headers", "headers, no token", "prefill", LONG)
EARLY, LATE, MAX_TOKENS = 3, 100, 240
TRIES = 12
PREFILL_S = 3  # how long the prompt of a cell should take, so that there is a phase to leave in
LONG_PREFILL_S = 22  # far longer than a proof is looked for
WORDS_MIN, WORDS_MAX, WORDS_LONG_MAX = 60, 300, 850  # the last fills a slot of 4096 tokens
FILLER_TOKENS = 300
STORM = 300


class Missed(Exception):
    """The phase was over, or had not begun. `late` says which."""

    def __init__(self, late, why):
        super().__init__(why)
        self.late = late


@dataclasses.dataclass
class Result:
    """What one cell came to."""

    phase: str
    stream: bool
    way: str
    level: str = ""
    waste: int | None = None
    after: int = 0  # requests that the engine counted when the run had settled, beside those that belong there
    read: int = 0
    tries: int = 1
    why_not: str = ""
    faults: list = dataclasses.field(default_factory=list)


def not_applicable(phase, stream):
    """Why nobody can leave there, or nothing."""
    if phase == "headers, no token" and not stream:
        return "the head of an answer that is not streamed comes with all of it"
    return ""


def rows(phases):
    """(phase, streaming) of the table, top down. A long prefill is the same to the engine whether it streams or not."""
    return [(phase, stream) for phase in phases for stream in (True, False) if stream or phase != LONG]


def marks(caller):
    """Reads a stream to its end: when its head, its first token and so on came."""
    at = {}
    seen = {"head": lambda: caller.head, "first": lambda: caller.tokens >= 1, "early": lambda: caller.tokens >= EARLY}
    seen |= {"late": lambda: caller.tokens >= LATE, "end": lambda: caller.over}
    for mark, there in seen.items():
        if not caller.read_until(there):
            raise RuntimeError(f"an undisturbed stream ended before `{mark}`: {caller.answer.status} {caller.answer.body[-300:]!r}")
        at[mark] = caller.elapsed()
    return at


def prompt_words(words, at, least=WORDS_MIN):
    """How many words take PREFILL_S, when so many had these marks."""
    return max(least, min(WORDS_MAX, int(words * PREFILL_S / max(at["first"] - at["head"], 0.01))))


class Cells:
    """All cells of one engine behind one gateway."""

    def __init__(self, engine, gateway, slots, say):
        self.engine, self.gateway, self.slots, self.say = engine, gateway, slots, say
        self.names = Names()
        self.words, self.words_long = WORDS_MIN, WORDS_LONG_MAX
        self.times, self.times_decode = {}, {}

    def call(self, what, stream, words, max_tokens, timeout_ms=None):
        return Caller(self.gateway, self.names.name(what), stream, self.names.prompt(words), max_tokens, timeout_ms)

    def timed(self, words):
        """One whole stream: when its head, its first token and so on came. Nobody leaves here."""
        self.engine.idle()
        with_all = self.call("timed", True, words, MAX_TOKENS)
        at = marks(with_all)
        self.gateway.settled(with_all.name)
        return at, with_all.usage()[0]

    def calibrate(self):
        """A prompt that takes long enough, and how long the phases take with it."""
        at, prompt = self.timed(self.words)
        self.words = prompt_words(self.words, at)
        self.times_decode = at
        self.times, prompt = self.timed(self.words)
        prefill = max(self.times["first"] - self.times["head"], 0.01)
        self.words_long = max(self.words, min(WORDS_LONG_MAX, int(self.words * LONG_PREFILL_S / prefill)))
        self.say(f"a prompt of {prompt} tokens; seconds to " + ", ".join(f"{mark} {t:.2f}" for mark, t in self.times.items()))

    def timeout(self, phase):
        """A deadline that should fall into that phase, in seconds."""
        at = self.times if phase in NO_TOKEN else self.times_decode
        middle = {
            "before headers": at["head"] / 2,
            "headers, no token": (at["head"] + at["first"]) / 2,
            "prefill": (at["head"] + at["first"]) / 2,
            LONG: (at["head"] + at["first"]) / 2,
            "early decode": (at["early"] + at["late"]) / 2,
            "late decode": (at["late"] + at["end"]) / 2,
        }
        return middle[phase]

    # One cell.

    def cell(self, phase, stream, way):
        result = Result(phase, stream, way, why_not=not_applicable(phase, stream))
        if result.why_not:
            return result
        seconds = self.timeout(phase)
        for result.tries in range(1, TRIES + 1):
            self.engine.idle()
            self.engine.begin()
            words = self.words_long if phase == LONG else self.words if phase in NO_TOKEN else WORDS_MIN
            caller = self.call("cell", stream, words, MAX_TOKENS, max(1, int(seconds * 1000)) if way == "deadline" else None)
            try:
                self.enter(phase, caller, stream)
                caller.leave(way)
                self.was_in(phase, caller)
                record = self.gateway.settled(caller.name)
                self.fell_in(phase, record, way)
            except Missed as missed:
                self.say(f"  {phase}, {way}: {missed}; again")
                caller.drop()
                if way == "deadline" and phase not in NO_TOKEN:
                    # A machine with other work to do is not as quick as it was.
                    self.times_decode, _ = self.timed(WORDS_MIN)
                    seconds = (seconds + self.timeout(phase)) / 2
                seconds *= 0.85 if missed.late else 1.2
                continue
            after = self.engine.present()
            caller.drop()
            self.judge(result, record, after, 0)
            result.read = caller.tokens
            if record.get("attempt", 0) < 1:
                result.faults.append(f"it left in {phase}, and its record says that it was never sent: attempt {record.get('attempt')}")
            return result
        result.faults.append(f"not hit in {TRIES} tries")
        return result

    def enter(self, phase, caller, stream):
        """Returns as soon as the phase is seen."""
        ended = "it ended before the phase was seen"
        if phase == "before headers":
            while self.gateway.run(caller.name).get("attempt", 0) < 1:
                if not caller.read(0.005):
                    raise Missed(False, ended)
        elif phase == "headers, no token":
            if not caller.read_until(lambda: caller.head):
                raise Missed(False, ended)
        elif phase in ("prefill", LONG):
            if generated := self.watch(caller, lambda working, generated: working > 0):
                raise Missed(True, f"the engine had generated {generated} tokens")
        elif stream:
            least = EARLY if phase == "early decode" else LATE
            if not caller.read_until(lambda: caller.tokens >= least):
                raise Missed(False, ended)
        else:
            least = EARLY if phase == "early decode" else LATE
            generated = self.watch(caller, lambda _, generated: generated >= least)
            if phase == "early decode" and generated >= LATE:
                raise Missed(True, f"the engine had generated {generated} tokens")
        if caller.over:
            raise Missed(False, ended)

    def watch(self, caller, seen):
        """Looks at the engine until it shows that, no longer: what follows is undisturbed. Returns the tokens that it showed."""
        while not seen(*(progress := self.engine.progress())):
            if not caller.read(0.1):
                raise Missed(False, "it ended before the engine showed the phase")
        return progress[1]

    def was_in(self, phase, caller):
        """The caller has read nothing that belongs to a later phase, up to its leaving."""
        if phase == "before headers" and caller.answer.status == 200:
            raise Missed(True, "its head had come")
        if phase in NO_TOKEN and caller.tokens > 0:
            raise Missed(True, "a token had come")
        if phase == "headers, no token" and not caller.head:
            raise Missed(False, "no head had come")
        if phase == "early decode" and caller.tokens >= LATE:
            raise Missed(True, f"{caller.tokens} tokens had come")

    @staticmethod
    def fell_in(phase, record, way):
        """The gateway's own account agrees: for a token that it had and the caller had not read."""
        cause = (record.get("outcome") or {}).get("cause")
        if cause in ("stop", "length"):
            raise Missed(True, f"it had ended by itself ({cause})")
        if phase in NO_TOKEN and record["tokens"]["generated"] > 0:
            raise Missed(True, f"the gateway had {record['tokens']['generated']} tokens ({way})")

    def judge(self, result, record, after, others):
        """What every cell asserts."""
        result.level, result.waste, result.after = record["guarantee"] or "none", record["waste_bound_tokens"], after - others
        cause = (record.get("outcome") or {}).get("cause")
        if cause != CAUSES[result.way]:
            result.faults.append(f"its cause is {cause}, not {CAUSES[result.way]}")
        if result.level not in ("confirmed", "observed", "best_effort"):
            result.faults.append(f"its level is {result.level}")
        if result.level in ("confirmed", "observed") and after > others:
            result.faults.append(f"it is `{result.level}`, and the engine still counts {after} requests, not {others}")
        if after < others:
            result.faults.append(f"the engine counts {after} requests, and {others} others are in it")
        if result.level == "best_effort" and result.waste is None:
            result.faults.append("nothing bounds what it can still waste")

    # Queued runs: the slots are full of others.

    def queued(self):
        """All cells of queued runs behind the same fillers, which are read to their ends: then the engine's sums are theirs alone."""
        self.engine.idle()
        before = self.engine.totals()
        fillers = [self.call("filler", True, WORDS_MIN, FILLER_TOKENS) for _ in range(self.slots)]
        for filler in fillers:
            filler.read_until(lambda filler=filler: filler.tokens >= 1)
        results = [self.queued_cell(fillers, stream, way) for stream in (True, False) for way in WAYS]
        for filler in fillers:
            filler.read_until(lambda filler=filler: filler.over)
            self.gateway.settled(filler.name)
        usages = [filler.usage() for filler in fillers]
        self.engine.idle()
        now = self.engine.totals()
        moved = (now[0] - before[0], now[1] - before[1])
        cached = 0 if self.engine.cached_is_counted else sum(usage[1] for usage in usages)
        theirs = (sum(usage[0] for usage in usages) - cached, sum(usage[2] for usage in usages))
        self.say(f"  behind {self.slots} fillers of {theirs} prompt and new tokens the engine's own sums moved by {moved}")
        if moved != theirs:
            for result in results:
                result.faults.append(f"the engine worked on {moved} prompt and new tokens, and the others had {theirs}: a queued run began")
        return results

    def queued_cell(self, fillers, stream, way):
        result = Result(QUEUED, stream, way)
        caller = self.call("queued", stream, WORDS_MIN, MAX_TOKENS, 300 if way == "deadline" else None)
        while not (record := self.gateway.run(caller.name)):
            caller.read(0.005)
        if record["state"] != QUEUED or record["attempt"] != 0:
            result.faults.append(f"behind full slots it is {record['state']}, attempt {record['attempt']}")
        caller.leave(way)
        record = self.gateway.settled(caller.name)
        after = self.engine.present()
        caller.drop()
        self.judge(result, record, after, len(fillers))
        if record["attempt"] != 0:
            result.faults.append(f"it was never to start, and its record says attempt {record['attempt']}")
        for filler in fillers:
            filler.read(0)
            if filler.over:
                result.faults.append("a filler ended while it was queued: nothing was shown")
        return result

    # Many at once.

    def storm(self, wide):
        """So many callers at once, each of which leaves as soon as its run is known. `wide` says whether the gateway has a slot for each,
        so that all of them are on their way to the engine by then, or only as many as the engine has, so that most of them wait."""
        self.engine.idle()
        start = threading.Barrier(STORM)
        with concurrent.futures.ThreadPoolExecutor(STORM) as pool:
            left = [pool.submit(self.one_of_many, number, start) for number in range(STORM)]
            callers = [one.result() for one in left]
        records = [(way, self.gateway.settled(caller.name)) for caller, way in callers]
        at_once = self.engine.present()
        for caller, _ in callers:
            caller.drop()
        self.engine.idle()
        faults = self.nothing_goes_on()
        live = [run["id"] for run in self.gateway.ask("GET", "/v1/runs?limit=1000")[1].get("data", []) if not run["settled"]]
        faults += [f"{len(live)} runs have not settled: {live[:3]}"] if live else []
        faults += [f"{way}: cause {record['outcome']['cause']}" for way, record in records if record["outcome"]["cause"] != CAUSES[way]]
        levels = collections.Counter("never sent" if record["attempt"] == 0 else record["guarantee"] for _, record in records)
        if at_once and levels["best_effort"] == 0:
            faults.append(f"all are proven gone, and the engine still counts {at_once}")
        self.say(f"  {STORM} left: {dict(levels)}; the engine counted {at_once} when all had settled, then 0 {faults or ''}")
        return {"wide": wide, "left": STORM, "levels": dict(levels), "at_once": at_once, "faults": faults}

    def one_of_many(self, number, start):
        way = WAYS[number % 3]  # a deadline cannot be told to fall there
        start.wait()
        caller = self.call("storm", number % 2 == 0, WORDS_MIN, MAX_TOKENS)
        while not self.gateway.run(caller.name):
            caller.read(0.001)
        caller.leave(way)
        return caller, way

    def nothing_goes_on(self):
        """One more request is answered, and the engine's own sums move by that alone."""
        before = self.engine.totals()
        after = self.call("after", True, WORDS_MIN, EARLY)
        after.read_until(lambda: after.over)
        self.gateway.settled(after.name)
        prompt, cached, new = after.usage()
        self.engine.idle()
        now = self.engine.totals()
        moved, its = (now[0] - before[0], now[1] - before[1]), (prompt - (0 if self.engine.cached_is_counted else cached), new)
        return [] if moved == its else [f"the engine's own sums moved by {moved} over a request of {its}: something else goes on"]
