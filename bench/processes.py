"""Processes that the drivers here start: free ports for them, all that they start themselves, and their end.

Invariant: a process is ended by the id that started it, with all that it started; an id that meanwhile belongs to another process is left
alone.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import threading

STOP_LIMIT_S = 20


def free_port():
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def two_free_ports():
    """The first of two neighbours: a router shows its own metrics at the second."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port + 1))
            return port


def how_it_ended(code):
    """An exit status in words. A shell that starts the server passes a signal on as 128 more."""
    number = -code if code < 0 else code - 128
    if number == signal.SIGILL:
        return "died of an illegal instruction (SIGILL): it was built for a processor with other instruction sets than this one has"
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(number).name}"
    return f"ended with exit code {code}"


def born(pid):
    """When that process began, in the kernel's ticks, and whose child it is; nothing if it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[19]), int(fields[1])
    return None


def family(pid):
    """A process and all below it."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and (found := born(entry.name)):
            parents[int(entry.name)] = found[1]
    found, new = set(), {pid}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in new} - found
    return sorted(found)


def end(child):
    """Asks it to end and waits; what does not end in time, or is left of what it started, is killed."""
    below = [(pid, born(pid)) for pid in family(child.pid) if pid != child.pid]
    child.terminate()
    try:
        child.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout:
        child.stdout.close()
    for pid, was in below:
        # Orphans have another parent, and the same beginning.
        if was and (now := born(pid)) and now[0] == was[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_all_when_told():
    """SIGTERM and SIGHUP unwind this program, as SIGINT does, so that what it started is ended."""

    def told(number, _):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, told)


class Ended:
    """What has a `child` is ended with the block that it was started for."""

    def stop(self):
        end(self.child)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Listening(Ended):
    """`with Listening(argv, signs, log) as process:` It has printed a line that begins with each of the signs; `said` has what stood
    behind."""

    def __init__(self, argv, signs, log, environment=None):
        self.argv, self.said = [str(word) for word in argv], {}
        self.child = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **(environment or {})}
        )
        try:
            for line in self.child.stdout:
                self.said |= {sign: line.removeprefix(sign).strip() for sign in signs if line.startswith(sign)}
                if len(self.said) == len(signs):
                    break
            else:
                raise RuntimeError(f"`{self.argv[0]} {self.argv[1]}` {how_it_ended(self.child.wait())} before it listened")
        except BaseException:
            self.stop()
            raise
        # A pipe that nobody reads would stop it.
        threading.Thread(target=self.child.stdout.read, daemon=True).start()

    def port(self, sign):
        """The port of an address that it printed."""
        return int(self.said[sign].rsplit(":", 1)[1].rstrip("/"))
