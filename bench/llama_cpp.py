"""Forward speed of kvit's engine beside llama.cpp's, on the same model and the same token ids, in one run.

Both use the same number of threads. The rounds alternate which comes first, a round's ratio compares its own two figures, and the last
line is the median over rounds: so a machine that slows down for a while slows both. Where llama.cpp's figure can be read in two ways,
the reading that favours llama.cpp is taken:
  prefill  512 ids in one request: its own `prompt_per_second`, without HTTP and queueing.
  decode   one request with 1 or 8 prompts of 16 ids, so that all slots start together; 64 tokens each. Its clock starts when a prompt
           is done and it counts the token that the prompt itself yields, so 64 tokens are set against 63 steps. At batch 8: the greater
           of the sum of the slots' own rates and 8 * 64 tokens over the longest slot's time since its prompt was done.
With --min-ratio the exit code is 1 where ours is slower than so many times theirs in prefill_512 or decode_8, by the medians.
Ours is what --ours-cmd prints: {"isa": NAME, "threads": N, "prefill_512": TOKENS_PER_S, "decode": {"1": ..., "8": ...}}.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys

from llama_server import DEFAULT_COMMAND, LlamaServer, ServerError, instruction_sets

IDS = [1000 + i * 37 % 40000 for i in range(512)]
PROMPT = 16
TOKENS = 64
SLOTS = 8
REPEATS = 3  # measurements a round; the round's figure is their median
OURS_LIMIT_S = 600
FIGURES = ["prefill_512", "decode_1", "decode_8"]
HELD_TO = ["prefill_512", "decode_8"]  # what --min-ratio looks at


def completions(server, prompts, count):
    """The server's own timings of each prompt, all handed over in one request."""
    body = {"prompt": prompts, "n_predict": count, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
    reply = server.post("/completion", body)
    timings = [one["timings"] for one in (reply if isinstance(reply, list) else [reply])]
    for one, prompt in zip(timings, prompts, strict=True):
        seen = (one["prompt_n"], one["predicted_n"])
        if seen != (len(prompt), count):
            raise RuntimeError(f"llama.cpp worked on {seen} prompt and new tokens, not on {(len(prompt), count)}")
    return timings


def prefill(server):
    return completions(server, [IDS], 1)[0]["prompt_per_second"]


def decode(server, batch):
    timings = completions(server, [IDS[i * PROMPT : (i + 1) * PROMPT] for i in range(batch)], TOKENS)
    own_rates = sum(one["predicted_per_second"] for one in timings)
    together = batch * TOKENS * 1000 / max(one["predicted_ms"] for one in timings)
    return max(own_rates, together)


def peer_round(server):
    """One round of llama.cpp: figure -> tokens a second."""
    work = {"prefill_512": lambda: prefill(server), "decode_1": lambda: decode(server, 1), "decode_8": lambda: decode(server, 8)}
    return {name: statistics.median(run() for _ in range(REPEATS)) for name, run in work.items()}


def ours_round(command, threads):
    """One round of ours: (instruction set, figure -> tokens a second)."""
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, timeout=OURS_LIMIT_S, check=True)
    said = json.loads(done.stdout)
    if said["threads"] != threads:
        raise RuntimeError(f"ours ran on {said['threads']} threads, llama.cpp on {threads}")
    return said["isa"], {"prefill_512": said["prefill_512"], "decode_1": said["decode"]["1"], "decode_8": said["decode"]["8"]}


def measure(args):
    rounds = []
    result = {"threads": args.threads, "llama_cpp": instruction_sets(args.server_cmd), "ours": {"isa": None}, "rounds": rounds}
    with LlamaServer(args.server_cmd, SLOTS, args.threads) as server:
        result["llama_cpp"]["build"] = server.get("/props")["build_info"]
        peer_round(server)  # warms the caches and the slots; not counted
        for number in range(args.rounds):
            entry = {}
            sides = ["ours", "llama_cpp"] if number % 2 == 0 else ["llama_cpp", "ours"]
            for side in sides:
                if side == "llama_cpp":
                    entry[side] = peer_round(server)
                elif args.ours_cmd:
                    result["ours"]["isa"], entry[side] = ours_round(args.ours_cmd, args.threads)
            if "ours" in entry:
                entry["ratio"] = {name: entry["ours"][name] / entry["llama_cpp"][name] for name in FIGURES}
            rounds.append(entry)
            print(f"round {number + 1} of {args.rounds} done", file=sys.stderr)
    result["median"] = {
        side: {name: statistics.median(entry[side][name] for entry in rounds) for name in FIGURES}
        for side in ("ours", "llama_cpp", "ratio")
        if side in rounds[0]
    }
    return result


def table(result):
    weights = ", ".join(f"{name} {size:.0f} MiB" for name, size in result["llama_cpp"]["weights"].items())
    lines = [f"threads: {result['threads']}; tokens a second"]
    lines += [f"ours: instruction set {result['ours']['isa']}"] if result["ours"]["isa"] else []
    lines += [f"llama.cpp {result['llama_cpp']['build']}: {' '.join(result['llama_cpp']['features'])}; weights in {weights}"]
    sides = list(result["median"])
    lines.append(f"{'':8}" + "".join(f"{name:^{12 * len(sides)}}" for name in FIGURES))
    lines.append(f"{'round':8}" + "".join(f"{side:>12}" for _ in FIGURES for side in sides))
    for number, entry in [*enumerate(result["rounds"], 1), ("median", result["median"])]:
        lines.append(f"{number!s:8}" + "".join(f"{entry[side][name]:>12.2f}" for name in FIGURES for side in sides))
    return "\n".join(lines)


def below(result, least):
    """What of ours is slower than `least` times theirs, a line each."""
    ratios = result["median"]["ratio"]
    return [f"{name}: {ratios[name]:.3f} of llama.cpp's, below {least}" for name in HELD_TO if ratios[name] < least]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-cmd", default=DEFAULT_COMMAND, help="starts llama-server; gets PORT SLOTS THREADS (default: %(default)s)")
    parser.add_argument("--ours-cmd", help="prints our figures as JSON; without it only llama.cpp is measured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--min-ratio", type=float, metavar="X", help=f"exit with 1 where a median of {' or '.join(HELD_TO)} is below it")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.min_ratio is not None and not args.ours_cmd:
        parser.error("--min-ratio compares, and there is nothing of ours to compare: give --ours-cmd")
    try:
        result = measure(args)
    except ServerError as error:
        sys.exit(f"{parser.prog}: {error}")
    print(json.dumps(result, indent=1) if args.json else table(result))
    if args.min_ratio is not None and (slow := below(result, args.min_ratio)):
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
