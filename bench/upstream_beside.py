"""The same callers in front of kvit and of gateways that others wrote, side by side, before one engine; and before the engine itself.

Prints a table as Markdown: for each way of leaving in each phase, how long the engine counted the request after its caller had left, by the
engine's own counters and nothing else. The tries of a cell go round over the gateways, so whatever else the machine does meets all of them.
Exit code 1 if kvit is slower anywhere than another of them by more than a look and a step of the engine, or leaves anything running. With
--write FILE the table is put between the two marker comments of that file; without a success nothing is written.
"""

import argparse
import contextlib
import datetime
import functools
import sys

import pages
import upstreams
from upstream_caller import Caller, Names
from upstream_cells import EARLY, LATE, MAX_TOKENS, QUEUED, WORDS_MIN, marks, prompt_words
from upstream_engines import STEP_TOKENS, Gateway, LlamaCpp, Vllm, file_limit
from upstream_outside import GONE, LOOK_S, NEVER, PHASES, STAYED, TO_ITS_END, WAYS, Outside, fillers, median
from upstream_peers import MODEL, PEERS, Direct, Peer, peer_command, why_not

OURS = "kvit"
WORDS_PREFILL_MIN = 150  # the machine may be quicker than it was when it was timed


def rows(phases, ways):
    """(phase, streaming, way) of the table, top down."""
    return [(phase, stream, way) for phase in phases for stream in (True, False) for way in ways]


def tries_of(found, gateway, row):
    return [one for one in found["tries"] if (one["gateway"], one["phase"], one["stream"], one["way"]) == (gateway, *row)]


def seconds(tries):
    """How long it was counted: the median of those that were seen to go."""
    return f"{median(tries):.1f} s"


def tokens(tries):
    most = max(one["more"] for one in tries)
    return f", {most} tokens" if most else ""


def shown(tries):
    """One cell in few words."""
    if not tries:
        return "none"
    groups = [(word, [one for one in tries if one["outcome"] == word]) for word in (NEVER, GONE, STAYED, TO_ITS_END)]
    said = []
    for word, those in groups:
        if those:
            text = {GONE: lambda t: seconds(t) + tokens(t), NEVER: lambda _: NEVER}.get(word, lambda t, w=word: w + tokens(t))(those)
            said.append(text if len(those) == len(tries) else f"{len(those)} of {len(tries)}: {text}")
    return "; ".join(said)


def table(found):
    """The Markdown of one run."""
    setup = f" ({found['setup']})" if found["setup"] else ""
    versions = ", ".join(f"{name} {version}".strip() for name, version in found["gateways"].items() if name != "direct")
    lines = [
        f"{found['engine']} {found['version']}{setup}, {found['slots']} slots; {versions}; on {found['machine']}, {found['date']}. "
        f"{found['each']} {'try' if found['each'] == 1 else 'tries'} a cell; what is not longer apart than {found['resolution_s']:.1f} s is the same (a look and a step of the "
        f"engine); prefill of a cell without a token: about {found['prompt_s']:.1f} s; "
        f"{found['tokens'][2]} tokens at most; early is from token {found['tokens'][0]} on, late from token {found['tokens'][1]} on.",
        "",
        "| phase | | way | " + " | ".join(found["gateways"]) + " |",
        "|---|---|---|" + "---|" * len(found["gateways"]),
    ]
    for phase, stream, way in rows(found["phases"], found["ways"]):
        cells = [shown(tries_of(found, gateway, (phase, stream, way))) for gateway in found["gateways"]]
        lines.append(f"| {phase} | {'streaming' if stream else 'not'} | {way} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{name} does not serve this engine: {why}." for name, why in found["silent"].items())]
    return "\n".join(lines).rstrip()


def faults(found):
    """What is not as it has to be, a line each."""
    said = [f"kvit does not serve this engine: {why}" for name, why in found["silent"].items() if name == OURS]
    for row in rows(found["phases"], found["ways"]):
        where = f"{row[0]}, {'streaming' if row[1] else 'not'}, {row[2]}"
        missing = [name for name in found["gateways"] if name not in found["silent"] and not tries_of(found, name, row)]
        said += [f"{where}: {name} was not left in it" for name in missing]
        ours = tries_of(found, OURS, row)
        said += [f"{where}: with kvit one {one['outcome']}" for one in ours if one["outcome"] in (STAYED, TO_ITS_END)]
        said += [f"{where}: with kvit one came to the engine" for one in ours if row[0] == QUEUED and one["outcome"] != NEVER]
        for other in found["gateways"]:
            theirs = tries_of(found, other, row)
            if other not in (OURS, "direct") and ours and theirs and median(ours) > median(theirs) + found["resolution_s"]:
                said.append(f"{where}: {other} is quicker: {seconds(theirs)}, kvit {seconds(ours)}")
    return said


def rounds(gateways, each):
    """Whose turn it is in one cell: everybody's first try, then everybody's second, each round beginning with another."""
    for number in range(each):
        begin = number % len(gateways)
        yield from gateways[begin:] + gateways[:begin]


def tried(sides, each, phases, ways, say):
    """All tries of all cells."""
    found = []
    for row in rows(phases, ways):
        for side in rounds(sides, each):
            found += [vars(one)] if (one := side.tried(*row)) else []
        for side in sides:
            kind = side.gateway.kind
            say(f"{row[0]}, {'streaming' if row[1] else 'not'}, {row[2]}: {kind}: {shown(tries_of({'tries': found}, kind, row))}")
    return found


def timed(engine, words):
    """The marks of a stream at the engine itself, when nothing else runs, and the tokens of its prompt."""
    names = Names()
    engine.idle()
    caller = Caller(Direct(engine), names.name("timed"), True, names.prompt(words), MAX_TOKENS)
    return marks(caller), caller.usage()[0]


def measure(args, log):
    say = functools.partial(print, file=sys.stderr, flush=True)
    command = args.server_cmd or upstreams.DEFAULT_COMMAND
    make = {"llama": lambda: LlamaCpp(command, args.slots, args.threads, log, LlamaCpp.small_steps)}
    make["vllm"] = lambda: Vllm(args.server_cmd or upstreams.VLLM_COMMAND, log, args.slots)
    peers = peer_command(args.peer_cmd) if args.against else ""
    with make[args.engine]() as engine, contextlib.ExitStack() as stack:
        in_decode, _ = timed(engine, WORDS_MIN)
        words = prompt_words(WORDS_MIN, in_decode, WORDS_PREFILL_MIN)
        at, prompt = timed(engine, words)
        kvit = stack.enter_context(Gateway(args.kvit, engine, args.slots, log, MODEL))
        kvit.kind, kvit.version = OURS, functools.partial(upstreams.kvit_version, args.kvit)
        others = [stack.enter_context(Peer(kind, peers, engine, log)) for kind in args.against]
        gateways = [Direct(engine), kvit, *others]
        silent = {gateway.kind: why for gateway in gateways if (why := why_not(gateway))}
        say(f"does not serve: {silent}" if silent else "all serve")
        long = fillers(in_decode, args.slots)
        sides = [Outside(engine, gateway, args.slots, words, long, say) for gateway in gateways if gateway.kind not in silent]
        tries = tried(sides, args.tries, args.phase or PHASES, args.way or WAYS, say)
        return {
            "engine": engine.title,
            "kind": engine.kind,
            "version": engine.version(),
            "setup": ", ".join(filter(None, [args.built_from, f"{STEP_TOKENS} tokens a step at most"])),
            "slots": args.slots,
            "gateways": {gateway.kind: gateway.version() if gateway.kind != "direct" else "" for gateway in gateways},
            "silent": silent,
            "machine": pages.machine(),
            "date": datetime.date.today().isoformat(),
            "prompt_s": at["first"],
            "tokens": [EARLY, LATE, MAX_TOKENS],
            "each": args.tries,
            "resolution_s": LOOK_S + at["first"] * min(1, STEP_TOKENS / prompt),
            "phases": args.phase or PHASES,
            "ways": args.way or WAYS,
            "tries": tries,
        }


def names_of(text):
    """`a,b` as a list of known gateways."""
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"`{unknown[0]}` is none of {', '.join(PEERS)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=names_of, default=PEERS, metavar="KINDS", help=f"default: {','.join(PEERS)}")
    parser.add_argument("--peer-cmd", metavar="COMMAND", help="starts one of them: as COMMAND KIND PORT URL MODEL")
    parser.add_argument("--tries", type=int, default=3, help="of each cell (default: %(default)s)")
    upstreams.shared_options(parser)
    parser.add_argument("--phase", action="append", choices=PHASES, help="only these; then nothing is written")
    parser.add_argument("--way", action="append", choices=WAYS, help="only these; then nothing is written")
    args = parser.parse_args()
    file_limit()
    found = upstreams.found_by(parser, args, measure)
    print(table(found))
    if said := faults(found):
        sys.exit("\n".join(said))
    if args.write and not (args.phase or args.way):
        upstreams.write(args.write, f"beside {found['kind']}", table(found))


if __name__ == "__main__":
    main()
