"""`kvit verify` in front of the stacks that people run: engines alone and behind proxies, routers and gateways that others wrote.

Each stack is started with a tap at every boundary, judged, and ended. What is known of a stack (bench/stacks/known.py) has to be what is
found, at its boundary and with its advice, and nothing else; `--twice` judges each stack twice and demands the same verdicts. With
--write FILE the matrix is put between the two marker comments of that file; without a success nothing is written.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "gateway")]

import dynamo  # noqa: E402
import known  # noqa: E402
import page  # noqa: E402
import pages  # noqa: E402
from gateways import Gateway  # noqa: E402
from hops import PRINTED, SLOTS, Failed, bring, hops  # noqa: E402
from llama_server import DEFAULT_COMMAND, ServerError  # noqa: E402
from processes import Listening, end_all_when_told  # noqa: E402
from upstream_engines import LlamaCpp, Vllm  # noqa: E402

VLLM_COMMAND = "../shared/stacks/vllm.sh"
ENGINES = ["llamacpp", "vllm", "scripted"]
ALONE, SERVE, DYNAMO = "alone", "kvit-serve", "dynamo"
QUICK = [ALONE, "nginx", "haproxy", "haproxy-tuned", "kvit-gateway", SERVE]
LISTENS, REPORTS = "listening on ", "reporting on "
VERIFY_LIMIT_S = 900
# What is allowed is what the engine itself needs, so that a verdict is about the hops: llama-server looks once a second whether the caller
# of an answer that is not streamed is there. What it took in tokens stands in the matrix, beside a pass, too.
SETTINGS = {
    "llamacpp": {"tries": 1, "max_tokens": 128, "tokens": 96, "stop_ms": 3000, "prompt_words_max": 1024},
    "vllm": {"tries": 1, "max_tokens": 96, "tokens": 32, "stop_ms": 3000, "prompt_words_max": 2048},
    "kvit": {"tries": 1, "max_tokens": 128},
    "scripted": {"tries": 1, "max_tokens": 256, "prefill_ms": 300},
    "dynamo": {"tries": 1, "max_tokens": 256},
}
# What departures leave in an engine, and what its other callers notice of them, is asked of the engine alone.
BEHIND = {"neighbours": 0, "departures": 0}
KEY = "sk-x"  # the one that LiteLLM's configuration names


class Served:
    """An engine of this repository: it says where it listens."""

    def __init__(self, kind, argv, log, version):
        self.kind, self._argv, self._log, self._version = kind, argv, log, version

    def __enter__(self):
        self.process = Listening(self._argv, [LISTENS], self._log)
        self.port, self.child = self.process.port(LISTENS), self.process.child
        return self

    def __exit__(self, *_):
        self.process.stop()

    def version(self):
        return self._version


def kvit_version(kvit):
    return subprocess.run([kvit, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]


def engine(kind, args, log):
    """An engine that is not started yet, and the model that it is asked for."""
    if kind == "llamacpp":
        return LlamaCpp(args.server_cmd or DEFAULT_COMMAND, SLOTS, args.threads, log, LlamaCpp.small_steps)
    if kind == "vllm":
        return Vllm(args.server_cmd or VLLM_COMMAND, log, SLOTS)
    if kind == DYNAMO:
        return dynamo.Dynamo(log)
    if kind == "scripted":
        return Served(kind, [args.scripted, "nothing"], log, "of this repository")
    argv = [args.kvit, "serve", "--port", "0", "--store", "none", "--threads", args.threads]
    return Served("kvit", argv, log, kvit_version(args.kvit))


@contextlib.contextmanager
def set_up(engine, stack, args, folder):
    """The stack, with a tap in front of every hop. Gives the port at which it is asked, and the words that name its hops."""
    with contextlib.ExitStack() as parts:

        def tap(name, port):
            argv = [args.kvit, "tap", "127.0.0.1:0", f"127.0.0.1:{port}", "--name", name]
            return parts.enter_context(Listening(argv, [LISTENS, REPORTS], log))

        log = parts.enter_context(open(folder / "taps.log", "a"))
        front = tap(engine.kind, engine.port)
        kind = "unknown" if engine.kind == "scripted" else engine.kind
        words = [f"{engine.kind},kind={kind},tap={front.said[REPORTS]},version={engine.version()}"]
        for hop in reversed(stack):
            here = folder / hop.name
            here.mkdir()
            printed = parts.enter_context(open(here / PRINTED, "w"))
            home = {"XDG_DATA_HOME": str(here), "XDG_CONFIG_HOME": str(here)}
            kind = dataclasses.replace(hop.kind, environment={**hop.kind.environment, **home})
            gateway = parts.enter_context(Gateway(kind, front.port(LISTENS), None, here, printed))
            front = tap(hop.name, gateway.port)
            words.insert(0, hop.words(here, front.said[REPORTS], gateway.port))
        yield front.port(LISTENS), words


def judged(engine, stack, args, folder, compare=None):
    """The report of one judgement, and what was said of it."""
    folder.mkdir(parents=True)
    (folder / "key").write_text(KEY + "\n")
    settings = SETTINGS[engine.kind] | (BEHIND if stack else {})
    (folder / "settings.toml").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    report = folder / "report.json"
    with set_up(engine, stack, args, folder) as (port, words):
        argv = [args.kvit, "verify", f"http://127.0.0.1:{port}", "--engine", f"http://127.0.0.1:{engine.port}", "--json", str(report)]
        argv += ["--html", str(folder / "report.html"), "--settings", str(folder / "settings.toml"), "--key-file", str(folder / "key")]
        if engine.kind == "scripted":
            profile = folder / "scripted.toml"
            profile.write_text(subprocess.run([args.scripted, "--profile"], stdout=subprocess.PIPE, text=True, check=True).stdout)
            argv += ["--profile", str(profile)]
        if engine.kind != "kvit":
            argv += ["--model", "smollm2"]
        argv += [word for hop in words for word in ("--hop", hop)]
        argv += ["--compare", str(compare)] if compare else []
        heard = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(argv, timeout=VERIFY_LIMIT_S, **heard)
    (folder / "said.txt").write_text(done.stdout + done.stderr)
    if not report.exists():
        raise Failed(f"kvit verify ended with exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(report.read_text()), done.stdout


def reduced(name, engine, stack, report):
    """What the matrix and the expectations need of a report."""
    cells = {}
    for cell in report["cells"]:
        why = cell.get("why") or cell.get("missing") or ""
        figures = {word: cell.get(word) for word in ("fault", "lost_at", "advice", "tokens_after", "stop_ms", "by")}
        cells[cell["cell"]] = {"verdict": cell["verdict"], "why": why, **figures}
    checks = {c["name"]: {"verdict": c["verdict"], "why": c.get("why") or c.get("missing") or ""} for c in report["checks"]}
    versions = {hop.name: hop.version() for hop in stack} | {engine.kind: engine.version()}
    about = {"name": name, "title": " + ".join(hop.title for hop in stack), "engine": engine.kind, "hops": [hop.name for hop in stack]}
    return {**about, "versions": versions, "took_s": report["took_s"], "cells": cells, "checks": checks}


def verdict(cell):
    """What has to be the same the next time."""
    return (cell["verdict"], cell.get("fault"), cell.get("lost_at"))


def differences(first, second):
    """Where two judgements of a stack disagree, a line each: what differs, and what is known to waver in the engine itself."""
    differs, wavers = [], []
    for what in ("cells", "checks"):
        for name, cell in first[what].items():
            again = second[what].get(name)
            if not again or verdict(cell) != verdict(again):
                own = again and (known.wavers(first["engine"], name, cell, again) or known.fills(name, cell, again))
                (wavers if own else differs).append(f"{name}: {known.shown(cell)}, then {known.shown(again)}")
    return differs, wavers


class Stacks:
    """All that is judged in one run."""

    def __init__(self, args, log, folder):
        self.args, self.log, self.folder = args, log, folder
        self.known = hops(args.kvit)
        self.results, self.faults, self.missing = [], [], {}

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def chosen(self):
        """Names of the stacks, in the order of the table."""
        every = [ALONE, *self.known, SERVE, DYNAMO]
        names = self.args.names or (QUICK if self.args.quick else every)
        if unknown := [name for name in names if name not in every]:
            raise SystemExit(f"`{unknown[0]}` is no stack; there are {', '.join(every)}")
        return names

    def run(self):
        names = self.chosen()
        for kind in self.args.engine:
            behind = [name for name in names if name not in (SERVE, DYNAMO) and not (kind == "scripted" and name == "kvit-gateway")]
            self.with_engine(kind, behind)
        if SERVE in names:
            self.with_engine("kvit", [SERVE])
        if DYNAMO in names:
            self.with_dynamo()
        return self.found()

    def with_dynamo(self):
        """Judges it in a network of its own, by a driver that was started in there."""
        if dynamo.is_inside():
            return self.with_engine(DYNAMO, [DYNAMO])
        if why := dynamo.missing(self.args.install, self.log):
            self.missing[DYNAMO] = why
            return self.say(f"{DYNAMO}: {why}")
        kept = self.folder / "dynamo.json"
        argv = [sys.executable, __file__, DYNAMO, "--kvit", self.args.kvit, "--log", self.args.log, "--json", kept]
        argv += ["--reports", self.folder / "in-dynamo", *(f"--{name}" for name in ("twice", "retry") if getattr(self.args, name))]
        dynamo.inside([str(word) for word in argv])
        if not kept.exists():
            return self.faults.append(f"{DYNAMO}: the driver in a network of its own found nothing (see --log)")
        found = json.loads(kept.read_text())
        self.results += found["results"]
        self.faults += found["faults"]
        keep(self.args, self.found())

    def found(self):
        return {
            "date": datetime.date.today().isoformat(),
            "machine": pages.machine(),
            "kvit": kvit_version(self.args.kvit),
            "results": self.results,
            "missing": self.missing,
            "faults": self.faults,
        }

    def with_engine(self, kind, names):
        """Judges those stacks in front of one life of an engine."""
        able = []
        for name in names:
            why = "" if name in (ALONE, SERVE, DYNAMO) else bring(self.known[name], self.args.install, self.log)
            if why:
                self.missing[name] = why
                self.say(f"{name}: {why}")
                # Who asks for the few that are always there wants to know that they were judged.
                self.faults += [f"{kind}, {name}: {why}"] if self.args.quick else []
            else:
                able.append(name)
        if not able:
            return
        try:
            with engine(kind, self.args, self.log) as running:
                self.say(f"{kind} {running.version()} listens on {running.port}")
                for name in able:
                    self.one(running, name)
        except (ServerError, RuntimeError, OSError) as error:
            self.faults.append(f"{kind}: {error}")
            self.say(self.faults[-1])

    def one(self, engine, name):
        """Judges a stack, once or twice, and holds it against what is known."""
        stack = [] if name in (ALONE, SERVE, DYNAMO) else [self.known[name]]
        where = f"{engine.kind}, {name}"
        try:
            here = self.folder / f"{engine.kind}-{name}"
            first, _ = judged(engine, stack, self.args, here / "1")
            result = reduced(name, engine, stack, first)
            said = known.faults(result)
            if said and self.args.retry:
                self.say(f"{where}: " + "; ".join(said) + ": judged again")
                result = reduced(name, engine, stack, judged(engine, stack, self.args, here / "again")[0])
                said = known.faults(result)
            if self.args.twice:
                second, compared = judged(engine, stack, self.args, here / "2", here / "1" / "report.json")
                again = reduced(name, engine, stack, second)
                result["differs"], result["wavers"] = differences(result, again)
                said += [f"the second time {line}" for line in known.faults(again)]
                said += [f"not the same twice: {line}" for line in result["differs"]]
                if result["differs"]:
                    self.say(compared)
        except (Failed, RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:
            self.faults.append(f"{where}: {error}")
            self.say(self.faults[-1])
            return
        self.results.append(result)
        self.faults += [f"{where}: {line}" for line in said]
        keep(self.args, self.found())
        self.say(f"{where} ({result['took_s']:.0f} s): " + "; ".join(f"{cell} {known.shown(of)}" for cell, of in result["cells"].items()))
        for line in said:
            self.say(f"  ! {line}")


def keep(args, found):
    """What was found so far, for `--found`: a run that is ended early has not been in vain."""
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="stacks by name (default: all)")
    in_front = "in front of which they stand; may be given more than once (default: llamacpp)"
    parser.add_argument("--engine", action="append", choices=ENGINES, help=in_front)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--twice", action="store_true", help="judge each twice; the verdicts have to be the same")
    once = "judge a stack again that is not as it is known; what is found then counts, and the first time is told"
    parser.add_argument("--retry", action="store_true", help=once)
    starts = "starts the engine: as COMMAND PORT SLOTS THREADS, vLLM as COMMAND PORT OPTIONS"
    parser.add_argument("--server-cmd", metavar="COMMAND", help=starts)
    parser.add_argument("--threads", type=int, default=1, help="of llama-server and kvit serve (default: %(default)s)")
    parser.add_argument("--no-install", dest="install", action="store_false", help="install nothing: name what is missing")
    parser.add_argument("--kvit", default="target/debug/kvit", help="the binary (default: %(default)s)")
    parser.add_argument("--scripted", default="target/debug/examples/scripted", help="the scripted engine (default: %(default)s)")
    parser.add_argument("--reports", type=pathlib.Path, metavar="FOLDER", help="keep all reports and logs there; it must not have any")
    parser.add_argument("--log", default="/dev/null", help="where engines write to (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="everything that was found")
    parser.add_argument("--write", metavar="FILE", help="puts the matrix between its markers in this file")
    kept_by = "starts nothing: the matrix of runs that wrote these files with --json; of a stack in several the last counts"
    parser.add_argument("--found", metavar="FILE", action="append", help=kept_by)
    args = parser.parse_args()
    args.engine = args.engine or ["llamacpp"]
    if args.server_cmd and len(args.engine) > 1:
        parser.error("--server-cmd starts one engine: name one --engine")
    end_all_when_told()
    if args.found:
        found = page.joined([json.loads(pathlib.Path(file).read_text()) for file in args.found])
    else:
        with open(args.log, "a") as log, contextlib.ExitStack() as kept:
            folder = args.reports or pathlib.Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="kvit-stacks-")))
            found = Stacks(args, log, folder).run()
    keep(args, found)
    print(page.matrix(found))
    if found["faults"]:
        sys.exit("\n".join(found["faults"]))
    if args.write:
        document = pathlib.Path(args.write)
        document.write_text(pages.put(document.read_text(), page.BEGIN, page.END, page.matrix(found)))


if __name__ == "__main__":
    main()
