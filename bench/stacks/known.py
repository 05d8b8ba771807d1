"""What is known of stacks before `kvit verify` looks at them, and has to be what it finds: faults at their boundary with their advice, and
none elsewhere.

Invariant: whatever is not named here is a surprise, and a surprise is a failure of the command, not a line in a table.
"""

import dataclasses

EARLY, WHOLE, PREFILL = "early/close/stream", "early/close/whole", "prefill/close/stream"
QUEUED, LATE, RESET, CANCEL = "queued/close/stream", "late/close/stream", "early/reset/stream", "early/cancel/stream"
# Questions that every stack has to be judged in, one way or the other.
ASKED = [EARLY, WHOLE, LATE, RESET]


@dataclasses.dataclass(frozen=True)
class Known:
    """What a hop does with requests that are left."""

    faults: tuple  # it has to be found there
    advice: str = ""  # with this entry of the knowledge base
    may: tuple = ()  # it may be found there, too: what it is depends on the engine's pace


HOPS = {
    "haproxy": Known((WHOLE,), "haproxy-abortonclose", (PREFILL, QUEUED, EARLY, LATE)),
    "litellm": Known((WHOLE,), "litellm-cancel-on-disconnect", (PREFILL, QUEUED)),
    # Once the head of a stream is out they notice with its next event.
    "vllm-router": Known((), "", (QUEUED, PREFILL)),
    "sglang-router": Known((), "", (QUEUED, PREFILL)),
    "asgi-1": Known((WHOLE,), "asgi-is-disconnected", (QUEUED,)),
    "asgi-4": Known((WHOLE,), "asgi-is-disconnected", (QUEUED,)),
    "asgi-plain": Known((WHOLE,), "asgi-handler-not-cancelled", (QUEUED,)),
}
# What engines do with requests whose connection was closed.
ENGINES = {
    # It looks once a second whether the caller of an answer that is not streamed is there, and begins what waited (llama.cpp issue 13262).
    "llamacpp": Known((), may=(WHOLE, QUEUED, PREFILL)),
}
NOTHING = Known(())


def wavers(engine, name, *cells):
    """Whether the engine itself is known to do now this and now that with the question, and nothing else is in it."""
    own = [cell["verdict"] == "pass" or (cell["verdict"] == "fail" and side(cell["lost_at"]) == engine) for cell in cells]
    return name in ENGINES.get(engine, NOTHING).may and all(own)


def fills(name, first, second):
    """Whether memory that may have been a leak the first time is a pool that had filled by the second."""
    return name == "memory" and (first["verdict"], second["verdict"]) == ("not_proven", "pass")


def side(lost_at):
    """The hop that had the departure: the left side of the boundary."""
    return lost_at.split(" → ")[0] if lost_at else None


def faults(result):
    """What is not as it has to be in the result of one stack, a line each."""
    said, cells = [], result["cells"]
    for hop in result["hops"]:
        known = HOPS.get(hop, NOTHING)
        for name in known.faults:
            cell = cells.get(name)
            if not cell or cell["verdict"] != "fail":
                said.append(f"{name}: {hop} is known to lose the departure, and it was not found: {shown(cell)}")
            elif side(cell["lost_at"]) != hop:
                said.append(f"{name}: {hop} is known to lose the departure, and it was found at {cell['lost_at'] or 'no boundary'}")
            elif known.advice not in cell["advice"]:
                said.append(f"{name}: the advice is {', '.join(cell['advice']) or 'none'}, not {known.advice}")
    for name, cell in cells.items():
        if cell["verdict"] == "fail":
            at = side(cell["lost_at"])
            known = ENGINES.get(at, NOTHING) if at == result["engine"] else HOPS.get(at, NOTHING)
            if name not in (*known.faults, *known.may):
                said.append(f"{name}: nobody knew of {shown(cell)}")
    judged = [name for name, cell in cells.items() if cell["verdict"] in ("pass", "fail")]
    said += [f"{name}: it was not judged: {shown(cells.get(name))}" for name in ASKED if name not in judged]
    for name, check in result["checks"].items():
        if check["verdict"] == "fail":
            said.append(f"{name}: {check['why']}")
    return said


def shown(cell):
    """A verdict in few words."""
    if not cell:
        return "not asked"
    if cell["verdict"] == "fail":
        return f"{cell['fault']} at {cell['lost_at'] or 'a place that nobody knows'}"
    return {"pass": "pass", "not_applicable": "n/a"}.get(cell["verdict"]) or f"not proven ({cell['why']})"
