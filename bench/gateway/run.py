"""What a gateway costs in front of streams: kvit's and others', in turn, before the same scripted upstream.

Every gateway is started anew in each round, in another order, so that what else the machine does falls on all alike; a round has the callers
without a gateway, too. The gateway has one core, upstream and callers another (`--free`: all have all). Measured are

- `pace`: streams of a steady pace. Each token says when it was sent: how much later it arrives than without a gateway, and the processor
  time of the gateway's processes (user and system) over the tokens;
- `rush`: short streams one after the other: how many end in a second;
- `hold`: streams that are open and silent: the memory of the gateway's processes (PSS) over those streams.

Figures are medians over the rounds. With --write FILE the table is put between the two marker comments of that file. Exit code 1 if a
gateway that is there could not be measured.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import resource

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from gateways import Failed, Gateway, Process, cpu_ns, kinds, memory_bytes  # noqa: E402

DIRECT = "no gateway"
BEGIN, END = "<!-- made by cargo xtask gateway -->", "<!-- end of what cargo xtask gateway made -->"
SETTLE_S = 2  # what is freed behind a phase is freed by then


def events(caller):
    """What the callers say, line by line."""
    for line in caller.child.stdout:
        yield json.loads(line)


class Bench:
    """One machine's measurement."""

    def __init__(self, args, log, folder):
        self.args, self.log, self.folder = args, log, folder
        cores = sorted(os.sched_getaffinity(0))
        self.all = set(cores)
        self.one, self.load = ({cores[-1]}, {cores[0]}) if len(cores) > 1 and not args.free else (self.all, self.all)
        self.lives = 0

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def upstream(self):
        process = Process([self.args.load, "upstream"], self.load, self.log, stdout=subprocess.PIPE)
        return process, int(re.search(r":(\d+)$", process.child.stdout.readline().strip())[1])

    def gateway(self, kind, up, cores):
        self.lives += 1
        return Gateway(kind, up, cores, self.folder / str(self.lives), self.log)

    def caller(self, port, mode, streams, **options):
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        argv = [self.args.load, "caller", "--port", port, "--mode", mode, "--streams", streams, *words]
        return Process(argv, self.load, self.log, stdout=subprocess.PIPE)

    def window(self, gateway, port, mode, **options):
        """What the callers counted, and what it cost the gateway meanwhile."""
        before = after = 0
        with self.caller(port, mode, self.args.streams, warm=self.args.warm, **options) as caller:
            for event in events(caller):
                used = cpu_ns(gateway.pids()) if gateway else 0
                if event["at"] == "begin":
                    before = used
                else:
                    after = used
                    break
            else:
                raise Failed(f"the callers ended with exit code {caller.child.wait()} before they had counted")
        if event["failed"]:
            raise Failed(f"{event['failed']} streams failed; the first {event['why']}")
        return {**event, "cpu_ns": after - before}

    def pace(self, gateway, port):
        found = self.window(gateway, port, "pace", gap_us=self.args.gap_us, seconds=self.args.seconds)
        due = self.args.streams * found["seconds"] * 1e6 / self.args.gap_us
        cost = found["cpu_ns"] / max(found["tokens"], 1) / 1000
        return {"p50_us": found["p50_ns"] / 1000, "p99_us": found["p99_ns"] / 1000, "cpu_us": cost, "came": found["tokens"] / due}

    def rush(self, gateway, port):
        found = self.window(gateway, port, "rush", tokens=self.args.tokens, seconds=self.args.seconds / 2)
        return {"streams_s": found["streams"] / found["seconds"], "stream_cpu_us": found["cpu_ns"] / max(found["streams"], 1) / 1000}

    def hold(self, kind):
        """Bytes an open and silent stream, and how many there were: not every gateway opens as many as it is asked for."""
        upstream, up = self.upstream()
        with upstream, self.gateway(kind, up, self.one) as gateway:
            # So that what the first streams bring into being is not counted.
            self.window(gateway, gateway.port, "rush", tokens=self.args.tokens, seconds=self.args.warm)
            time.sleep(SETTLE_S)
            before = memory_bytes(gateway.pids())
            with self.caller(gateway.port, "hold", self.args.held) as caller:
                event = next(events(caller), None)
                if not event or event["streams"] < self.args.held / 100:
                    raise Failed(f"of {self.args.held} streams too few could be opened: {event}")
                time.sleep(SETTLE_S)
                after = memory_bytes(gateway.pids())
        return {"held_bytes": (after - before) / event["streams"], "open": event["streams"]}

    def life(self, kind):
        """One round of one gateway."""
        upstream, up = self.upstream()
        with upstream:
            if kind is None:
                return {**self.pace(None, up), **self.rush(None, up)}
            with self.gateway(kind, up, self.one) as gateway:
                found = {**self.pace(gateway, gateway.port), **self.rush(gateway, gateway.port)}
            if self.one != self.all:
                with self.gateway(kind, up, self.all) as gateway:
                    found["free_cpu_us"] = self.pace(gateway, gateway.port)["cpu_us"]
        return found


def added(rounds, name, word):
    """The median over the rounds of what a gateway adds to a figure of the callers without one."""
    return statistics.median(here[name][word] - here[DIRECT][word] for here in rounds if name in here)


def middle(rounds, name, word):
    return statistics.median(here[name][word] for here in rounds if name in here)


def table(found):
    """The Markdown of one run."""
    rounds, last = found["rounds"], found["held"]
    direct = {word: middle(rounds, DIRECT, word) for word in ("p50_us", "p99_us", "streams_s")}
    lines = [
        f"{found['machine']}, {found['date']}; medians of {len(rounds)} rounds. {found['places']} {found['streams']} streams of a token "
        f"every {found['gap_us'] / 1000:g} ms for {found['seconds']:g} s; short streams of {found['tokens']} tokens, {found['streams']} at "
        f"once; {found['held_streams']:,} streams open and silent. Without a gateway a token takes {direct['p50_us']:.0f} µs "
        f"(p99 {direct['p99_us']:.0f} µs), and {direct['streams_s']:,.0f} short streams end in a second.",
        "",
        "| gateway | threads | added to a token, p50 | p99 | CPU a token (s a million) | same, not pinned | CPU a short stream | short streams "
        "a second | memory an idle stream |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in found["gateways"]:
        name = kind["name"]
        if kind["missing"] or not any(name in here for here in rounds):
            continue
        free = f"{middle(rounds, name, 'free_cpu_us'):.1f} µs" if "free_cpu_us" in rounds[0].get(name, {}) else ""
        memory = f"{last[name]['held_bytes'] / 1024:.1f} KiB" if name in last else "not measured"
        if name in last and last[name]["open"] < found["held_streams"]:
            memory += f" ({last[name]['open']:,} were opened, and no more)"
        came = middle(rounds, name, "came")
        late = "" if came > 0.98 else f" ({came * 100:.0f}% of the tokens came in time)"
        lines.append(
            f"| {name} {kind['version']} | {kind['threads']} | {added(rounds, name, 'p50_us'):.0f} µs{late} | "
            f"{added(rounds, name, 'p99_us'):.0f} µs | {middle(rounds, name, 'cpu_us'):.1f} µs | {free} | "
            f"{middle(rounds, name, 'stream_cpu_us'):.0f} µs | {middle(rounds, name, 'streams_s'):,.0f} | {memory} |"
        )
    absent = [kind["name"] for kind in found["gateways"] if kind["missing"]]
    if absent:
        lines += ["", f"Not there: {', '.join(absent)}."]
    return "\n".join(lines)


def put(text, made):
    """`text` with what stands between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"there must be one line `{BEGIN}` and behind it one line `{END}`")
    return text[: text.index(BEGIN) + len(BEGIN)] + f"\n{made}\n" + text[text.index(END) :]


def machine():
    """What the figures depend on: processor and system, no name."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*: (.*)", info)
    return f"{os.cpu_count()} cores of {found[1].strip() if found else os.uname().machine}, Linux {os.uname().release.split('-')[0]}"


def measure(args, log, folder):
    bench = Bench(args, log, folder)
    known = [kind for kind in kinds(args.kvit) if not args.gateway or kind.name in args.gateway]
    here = [kind for kind in known if kind.path()]
    for kind in known:
        if kind not in here:
            bench.say(f"{kind.name} is not there; to install it: {kind.install}")
    rounds, held, faults = [], {}, []

    def attempt(kind, what, do):
        try:
            found = do()
            shown = ", ".join(f"{word} {value:.4g}" for word, value in found.items())
            bench.say(f"{what}, {kind.name if kind else DIRECT}: {shown}")
            return found
        except (Failed, OSError, ValueError) as error:
            faults.append(f"{kind.name if kind else DIRECT}, {what}: {error}")
            bench.say(faults[-1])

    for number in range(args.rounds):
        order = here[number % max(len(here), 1) :] + here[: number % max(len(here), 1)]
        found = {}
        for kind in [None, *order]:
            one = attempt(kind, f"round {number + 1}", lambda kind=kind: bench.life(kind))
            if one:
                found[kind.name if kind else DIRECT] = one
        rounds.append(found)
    for kind in here if args.held else []:
        one = attempt(kind, "idle streams", lambda kind=kind: bench.hold(kind))
        if one:
            held[kind.name] = one
    cores = len(bench.one)
    places = "Gateways on one core, upstream and callers on another." if bench.one != bench.all else "Everything on all cores."
    said = [
        {"name": k.name, "missing": k not in here, "threads": k.threads.format(cores=cores), "version": k.version() if k in here else ""}
        for k in known
    ]
    return {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "places": places,
        **{word: getattr(args, word) for word in ("streams", "gap_us", "seconds", "tokens")},
        "held_streams": args.held,
        "gateways": said,
        "rounds": rounds,
        "held": held,
        "faults": faults,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvit", default="target/dist/kvit", help="the binary (default: %(default)s)")
    parser.add_argument("--load", default="target/dist/gateway-bench", help="upstream and callers (default: %(default)s)")
    parser.add_argument("--gateway", action="append", help="only these, by name; may be given several times")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=40, help="at once (default: %(default)s)")
    parser.add_argument("--gap-us", type=int, default=20000, help="between two tokens of a stream (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="that tokens are timed; half of it for short streams (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=1, help="seconds before that (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=16, help="of a short stream (default: %(default)s)")
    parser.add_argument("--held", type=int, default=5000, help="idle streams; 0 for none (default: %(default)s)")
    parser.add_argument("--free", action="store_true", help="pin nobody to a core")
    parser.add_argument("--log", default="/dev/null", help="where all of them write to (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="everything that was found")
    parser.add_argument("--write", metavar="FILE", help="puts the table between its markers in this file")
    parser.add_argument("--found", metavar="FILE", help="starts nothing: the table of a run that wrote this file with --json")
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.found:
        found = json.loads(pathlib.Path(args.found).read_text())
    else:
        with open(args.log, "a") as log, tempfile.TemporaryDirectory(prefix="kvit-gateway-bench-") as folder:
            found = measure(args, log, pathlib.Path(folder))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    if any(DIRECT in here for here in found["rounds"]):
        print(table(found))
        if args.write and not found["faults"]:
            path = pathlib.Path(args.write)
            path.write_text(put(path.read_text(), table(found)))
    if found["faults"]:
        sys.exit("\n".join(found["faults"]))


if __name__ == "__main__":
    main()
