"""Leaving a run in every phase and in every way, through `kvit gateway` in front of an engine that others wrote.

Prints a table as Markdown: for each cell the guarantee level of the cancel as the gateway tells it. Every cell is held to the engine's own
counters, looked at once when the run has settled: where the level is `observed`, they are what they were before. Exit code 1 if any cell is
not as it has to be. With --write FILE the table is put between the two marker comments of that file; without a success nothing is written.
"""

import argparse
import datetime
import functools
import json
import pathlib
import subprocess
import sys

import pages
from llama_server import DEFAULT_COMMAND, ServerError
from upstream_cells import EARLY, LATE, MAX_TOKENS, PHASES, QUEUED, STORM, WAYS, Cells, rows
from upstream_engines import Gateway, LlamaCpp, Vllm, file_limit

VLLM_COMMAND = "../shared/stacks/vllm.sh"


def shown(result):
    """One cell in few words."""
    if result["why_not"]:
        return "not applicable"
    if result["faults"]:
        return "**fails**"
    if result["phase"] == QUEUED:
        return f"`{result['level']}`, never sent"
    if result["level"] != "best_effort":
        return f"`{result['level']}`"
    still = "" if result["after"] == 0 else f"; {result['after']} still counted"
    return f"`{result['level']}`, at most {result['waste']} tokens more{still}"


def table(found):
    """The Markdown of one engine's run."""
    setup = f" ({found['setup']})" if found["setup"] else ""
    lines = [
        f"{found['engine']} {found['version']}{setup}, {found['slots']} slots, `kvit gateway` {found['kvit']}, on {found['machine']}, "
        f"{found['date']}. "
        f"Prefill of a cell without a token: about {found['prompt_s']:.1f} s; {found['tokens'][2]} tokens at most; early is from token "
        f"{found['tokens'][0]} on, late from token {found['tokens'][1]} on.",
        "",
        "| phase | | " + " | ".join(WAYS) + " |",
        "|---|---|" + "---|" * len(WAYS),
    ]
    for phase, stream in rows(PHASES):
        row = [next(c for c in found["cells"] if (c["phase"], c["stream"], c["way"]) == (phase, stream, way)) for way in WAYS]
        lines.append(f"| {phase} | {'streaming' if stream else 'not'} | " + " | ".join(map(shown, row)) + " |")
    reasons = {(c["phase"], c["why_not"]) for c in found["cells"] if c["why_not"]}
    lines += ["", *(f"Not applicable ({phase}): {why}." for phase, why in sorted(reasons))]
    for storm in found["storms"]:
        levels = ", ".join(f"{count} {name if name == 'never sent' else f'`{name}`'}" for name, count in sorted(storm["levels"].items()))
        slots = "a slot for each" if storm["wide"] else f"{found['slots']} slots"
        lines += [
            "",
            f"{storm['left']} callers at once, each of which left (FIN, RST, cancel) as soon as its run was known, at a gateway with "
            f"{slots}: {levels}. When all had settled the engine counted {storm['at_once']} requests, and later 0; no run was left in "
            "the gateway, and one more request moved the engine's own sums by that request alone.",
        ]
    return "\n".join(lines)


def faults(found):
    """What is not as it has to be, a line each."""
    said = []
    for cell in found["cells"]:
        where = f"{cell['phase']}, {'streaming' if cell['stream'] else 'not streaming'}, {cell['way']}"
        said += [f"{where}: {fault}" for fault in cell["faults"]]
    return said + [f"{STORM} at once: {fault}" for storm in found["storms"] for fault in storm["faults"]]


def put(text, kind, made):
    """`text` with what stands between the markers of that engine replaced."""
    return pages.put(text, f"<!-- made by cargo xtask upstreams: {kind} -->", f"<!-- end: {kind} -->", made)


def kvit_version(binary):
    """What that binary says of itself."""
    return subprocess.run([binary, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]


def some(cells, phases, ways):
    """Those cells, one after the other."""
    cells.calibrate()
    results = cells.queued() if QUEUED in phases else []
    for phase, stream in rows(phases):
        for way in ways if phase != QUEUED else []:
            result = cells.cell(phase, stream, way)
            cells.say(f"{phase}, {'streaming' if stream else 'not'}, {way}: {shown(vars(result))} {result.faults or ''}")
            results.append(result)
    return results


def measure(args, log):
    make = {"llama": lambda: LlamaCpp(args.server_cmd or DEFAULT_COMMAND, args.slots, args.threads, log)}
    make["vllm"] = lambda: Vllm(args.server_cmd or VLLM_COMMAND, log)
    phases = args.phase or ([] if args.storms else PHASES)
    with make[args.engine]() as engine:
        results, storms, took = [], [], 0
        for wide in (False, True):
            with Gateway(args.kvit, engine, STORM if wide else args.slots, log) as gateway:
                cells = Cells(engine, gateway, args.slots, functools.partial(print, file=sys.stderr, flush=True))
                if not wide and phases:
                    results = some(cells, phases, args.way or WAYS)
                    took = cells.times["first"]
                if not (args.phase or args.way):
                    storms.append(cells.storm(wide))
        return {
            "engine": engine.title,
            "kind": engine.kind,
            "version": engine.version(),
            "setup": ", ".join(filter(None, [args.built_from, engine.setup])),
            "kvit": kvit_version(args.kvit),
            "slots": args.slots,
            "machine": pages.machine(),
            "date": datetime.date.today().isoformat(),
            "prompt_s": took,
            "tokens": [EARLY, LATE, MAX_TOKENS],
            "cells": [vars(result) for result in results],
            "storms": storms,
        }


def shared_options(parser):
    """Those of every driver that starts an engine and a kvit in front of it."""
    parser.add_argument("--engine", choices=["llama", "vllm"], default="llama", help="default: %(default)s")
    command = "starts the engine: as COMMAND PORT SLOTS THREADS, vLLM as COMMAND PORT OPTIONS"
    parser.add_argument("--server-cmd", metavar="COMMAND", help=command)
    parser.add_argument("--built-from", metavar="WORDS", default="", help="where the engine is from, if it does not say so itself")
    parser.add_argument("--kvit", default="target/debug/kvit", help="the binary (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=2, help="runs at once, for engine and gateway (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of llama-server (default: %(default)s)")
    parser.add_argument("--log", default="/dev/null", help="where engine and gateways write to (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="everything that was found")
    parser.add_argument("--write", metavar="FILE", help="puts the table between its markers in this file")
    parser.add_argument("--found", metavar="FILE", help="starts nothing: the table of a run that wrote this file with --json")


def found_by(parser, args, measure):
    """What `measure` finds, or what an earlier run has kept. Whoever cannot is told why."""
    try:
        if args.found:
            return json.loads(pathlib.Path(args.found).read_text())
        with open(args.log, "a") as log:
            found = measure(args, log)
    except (ServerError, RuntimeError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    return found


def write(path, kind, made):
    """Puts that table into that document."""
    document = pathlib.Path(path)
    document.write_text(put(document.read_text(), kind, made))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared_options(parser)
    parser.add_argument("--phase", action="append", choices=PHASES, help="only these; then no table")
    parser.add_argument("--way", action="append", choices=WAYS, help="only these; then no table")
    parser.add_argument("--storms", action="store_true", help="only many callers at once; then no table")
    args = parser.parse_args()
    file_limit()
    found = found_by(parser, args, measure)
    said = faults(found)
    whole = not (args.phase or args.way or args.storms)
    if whole:
        print(table(found))
    if said:
        sys.exit("\n".join(said))
    if args.write and whole:
        write(args.write, found["kind"], table(found))


if __name__ == "__main__":
    main()
