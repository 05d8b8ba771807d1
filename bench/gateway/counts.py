"""What a token costs kvit's gateway in what can be counted: instructions in user space (callgrind), and calls of the system (strace).

Streams of two lengths are passed on; the difference is the tokens' own. Where they are is told by function, as far as it is one in the binary.
Both counts are of the process alone, so they are the same on a busy machine, as far as it batches alike. Needs valgrind and strace. No store:
nothing is kept but in memory.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from gateways import Gateway, Process, kinds  # noqa: E402

STREAMS, SHORT, LONG, GAP_US = 8, 100, 500, 20_000
NAME = "kvit, store none"


def stream(port, tokens):
    """Reads a stream of so many tokens to its end."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    messages = [{"role": "user", "content": f"script: {tokens} {GAP_US} 0."}]
    body = json.dumps({"model": "smollm2", "messages": messages, "stream": True, "max_tokens": tokens})
    link.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    said = link.getresponse().read()
    link.close()
    if b"[DONE]" not in said:
        raise SystemExit(f"a stream did not end well: {said[:200]!r}")


def life(args, upstream, tokens, under):
    """One life of the gateway under a program that counts; it ends well."""
    [kind] = [kind for kind in kinds(args.kvit) if kind.name == NAME]
    kind.program, kind.args = under[0], [*under[1:], args.kvit, *kind.args]
    cores = None if args.free else {max(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as folder, Gateway(kind, upstream, cores, pathlib.Path(folder), subprocess.DEVNULL) as gateway:
        readers = [threading.Thread(target=stream, args=(gateway.port, tokens)) for _ in range(STREAMS)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        # The program that counts writes behind the end of what it counts.
        os.kill(gateway.pids()[-1], signal.SIGINT)
        gateway.child.wait(60)


def instructions(file):
    return int(re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE)[1])


# Where a token's instructions are: functions with all that they call. What is indented is a part of what stands above it; the journal is called
# from both sides.
PARTS = {
    "the engine's side": "upstream::link::Shared::take_down::{{closure}}",
    "  its HTTP/1.1": "<hyper::client::conn::http1::Connection<T,B> as core::future::future::Future>::poll",
    "  reading its events": "upstream::sse::Scanner::push",
    "  the call table, and whoever reads": "gateway::links::<impl gateway::calls::Calls>::hear",
    "the caller's side": "gateway::serve::connection::{{closure}}",
    "  what was delivered": "gateway::feed::Reader::taken",
    "the journal, called from both": "observe::journal::Journal::record",
}


def parts(file):
    """part -> instructions, of `callgrind_annotate`; a part whose function was put into another's is left out."""
    argv = ["callgrind_annotate", "--inclusive=yes", "--auto=no", "--threshold=100", str(file)]
    said = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    found = {}
    for count, name in re.findall(r"^ *([\d,]+) \([^)]*\)  \S+?:(\S.*?)(?: \[.*)?$", said, re.MULTILINE):
        found[name] = max(found.get(name, 0), int(count.replace(",", "")))
    return {part: found[name] for part, name in PARTS.items() if name in found}


def calls(file):
    """name -> how often, of `strace -c`."""
    rows = [line.split() for line in file.read_text().splitlines()]
    return collections.Counter({row[-1]: int(row[3]) for row in rows if len(row) in (5, 6) and row[3].isdigit() and row[-1] != "total"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvit", default="target/dist/kvit", help="the binary (default: %(default)s)")
    parser.add_argument("--load", default="target/dist/gateway-bench", help="the upstream (default: %(default)s)")
    parser.add_argument("--free", action="store_true", help="on all cores, and with as many threads; else on one")
    args = parser.parse_args()
    for program in (args.kvit, args.load):
        if not pathlib.Path(program).exists():
            sys.exit(f"{program} is missing: `cargo build --profile dist -p kvit -p gateway-bench` builds it")
    for program in ("valgrind", "strace"):
        if not shutil.which(program):
            sys.exit(f"{program} is missing: install your system's package `{program}`")
    upstream = Process([args.load, "upstream"], None, subprocess.DEVNULL, stdout=subprocess.PIPE)
    with upstream, tempfile.TemporaryDirectory() as name:
        port = int(re.search(r":(\d+)$", upstream.child.stdout.readline().strip())[1])
        file, tokens, found, where = pathlib.Path(name) / "counts", STREAMS * (LONG - SHORT), [], []
        for count, under in [
            (instructions, ["valgrind", "--tool=callgrind", f"--callgrind-out-file={file}"]),
            (calls, ["strace", "-f", "-c", "-o", str(file)]),
        ]:
            for length in (SHORT, LONG):
                life(args, port, length, under)
                found.append(count(file))
                where += [parts(file)] if count is instructions else []
        print(f"instructions a token: {(found[1] - found[0]) / tokens:.0f}")
        for part, count in where[1].items():
            print(f"  {part}: {(count - where[0].get(part, 0)) / tokens:.0f}")
        for call, times in sorted((found[3] - found[2]).items(), key=lambda item: -item[1]):
            if times > tokens / 100:
                print(f"{call} a token: {times / tokens:.2f}")


if __name__ == "__main__":
    main()
