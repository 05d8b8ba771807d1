"""The matrix of docs/stacks.md, out of what was found.

Invariant: every verdict of every stack that was judged is in it, and nothing that was not.
"""

import pathlib
import re

from known import ASKED, CANCEL, EARLY, LATE, PREFILL, QUEUED, RESET, WHOLE, side

BEGIN, END = "<!-- made by cargo xtask stacks -->", "<!-- end of what cargo xtask stacks made -->"
ADVICE = pathlib.Path(__file__).parents[2] / "crates/verify/knowledge/advice.toml"
COLUMNS = {
    QUEUED: "queued",
    PREFILL: "prefill",
    EARLY: "early",
    WHOLE: "early, whole answer",
    LATE: "late",
    RESET: "early, reset",
    CANCEL: "cancel",
}
ENGINES = {
    "llamacpp": "llama-server",
    "vllm": "vLLM",
    "dynamo": "Dynamo with its mocker",
    "kvit": "`kvit serve`",
    "scripted": "scripted engine",
}
assert all(cell in COLUMNS for cell in ASKED)


def shown(cell, engine):
    """One place of the matrix."""
    if not cell:
        return ""
    tokens = cell["tokens_after"]
    after = "" if tokens is None else f", {tokens:.0f}"
    if cell["verdict"] == "pass":
        return f"pass{after}"
    if cell["verdict"] != "fail":
        return "n/a" if cell["verdict"] == "not_applicable" else "?"
    at = side(cell["lost_at"])
    where = "" if at is None else f", {'engine' if at == engine else at}"
    return f"**{cell['fault']}**{where}{after}"


def version(result):
    """What stands in front of the engine, with its release."""
    names = [f"{result['title']} {result['versions'][name]}" for name in result["hops"]]
    return " + ".join(names) or "alone"


def titles():
    """Each entry of the knowledge base in a few words."""
    text = ADVICE.read_text() if ADVICE.exists() else ""
    return dict(re.findall(r'^id = "([^"]+)"\n(?:.*\n)*?title = "(.*)"$', text, re.MULTILINE))


def advised(results):
    """Which advice was given for what, a line each."""
    given = {}
    for result in results:
        for name, cell in result["cells"].items():
            for entry in cell["advice"] or [] if cell["verdict"] == "fail" else []:
                given.setdefault(entry, {}).setdefault(result["name"], []).append(name)
    said = titles()
    lines = []
    for entry, stacks in sorted(given.items()):
        where = "; ".join(f"{stack} ({', '.join(cells)})" for stack, cells in stacks.items())
        lines.append(f"- `{entry}`, {said.get(entry, 'unknown')}: {where}")
    return lines


def matrix(found):
    """The Markdown of all that was found."""
    lines = [f"`kvit` {found['kvit']}, on {found['machine']}, {found['date']}."]
    kinds = list(dict.fromkeys(result["engine"] for result in found["results"]))
    for kind in kinds:
        results = [result for result in found["results"] if result["engine"] == kind]
        lines += ["", f"{ENGINES[kind]} {results[0]['versions'][kind]}:", ""]
        lines += ["| in front of it | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---|" * len(COLUMNS)]
        for result in results:
            cells = [shown(result["cells"].get(name), kind) for name in COLUMNS]
            lines.append(f"| {version(result)} | " + " | ".join(cells) + " |")
        unproven = {}
        for result in results:
            for name, cell in [*result["cells"].items(), *result["checks"].items()]:
                if cell["verdict"] == "not_proven":
                    unproven.setdefault(cell["why"], []).append(f"{result['name']} {name}")
        lines += ["", *(f"Not proven: {why} ({', '.join(where)})." for why, where in unproven.items())] if unproven else []
        if advice := advised(results):
            lines += ["", "What to change, as `kvit verify` said it:", "", *advice]
    twice = [result for result in found["results"] if "differs" in result]
    if twice:
        same = sum(not result["differs"] for result in twice)
        lines += ["", f"{len(twice)} of the {len(found['results'])} stacks were judged twice; {same} had the same verdicts both times."]
        own = [f"{result['name']}, {line}" for result in twice for line in result["wavers"]]
        lines += [f"The engine itself does now this and now that: {'; '.join(own)}."] if own else []
    lines += ["", *(f"Not there: {name}, {why}." for name, why in found["missing"].items())] if found["missing"] else []
    return "\n".join(lines)


def joined(all_found):
    """Several runs as one: of a stack that was judged in more than one the newest counts."""
    results = {(result["engine"], result["name"]): result for found in all_found for result in found["results"]}
    order = ["llamacpp", "vllm", "dynamo", "kvit", "scripted"]
    judged = {name for _, name in results}
    return {
        **all_found[-1],
        "results": sorted(results.values(), key=lambda result: order.index(result["engine"])),
        "missing": {n: why for found in all_found for n, why in found["missing"].items() if n not in judged},
        "faults": [line for found in all_found for line in found["faults"]],
    }
