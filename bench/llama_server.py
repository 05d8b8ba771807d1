"""llama.cpp's own server as a child process on loopback: the peer that fixtures and benchmarks are compared with.

Invariant: the server is ended by the process id that started it, also when the caller fails.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

DEFAULT_COMMAND = "../shared/stacks/llama-server.sh"
START_LIMIT_S = 300  # the first start may install it
STOP_LIMIT_S = 20


def free_port():
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LlamaServer:
    """`with LlamaServer(command, slots, threads) as server: server.post("/tokenize", {...})`."""

    def __init__(self, command=DEFAULT_COMMAND, slots=1, threads=1, log=subprocess.DEVNULL, env=None):
        self.port = free_port()
        self.argv = [*shlex.split(command), str(self.port), str(slots), str(threads)]
        self.child, self.log, self.env = None, log, env or {}

    def __enter__(self):
        self.child = subprocess.Popen(self.argv, stdout=self.log, stderr=self.log, env={**os.environ, **self.env})
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_until_ready(self):
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise RuntimeError(f"{self.argv[0]} ended with {self.child.returncode} before it was ready")
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                if self.get("/health").get("status") == "ok":
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.argv[0]} was not ready within {START_LIMIT_S} s")

    def stop(self):
        """Ends the server by its process id and waits for it."""
        self.child.terminate()
        try:
            self.child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def get(self, path):
        with urllib.request.urlopen(self.url(path), timeout=30) as reply:
            return json.load(reply)

    def post(self, path, body):
        request = urllib.request.Request(self.url(path), json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)


def instruction_sets(command):
    """What llama.cpp says it was built for and found, and where its weights lie: a start of its own, with a wordy log."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        with LlamaServer(command, log=log, env={"LLAMA_ARG_LOG_VERBOSITY": "5"}):
            pass
        log.seek(0)
        text = log.read()
    info = re.search(r"system_info:.*", text)
    names = re.findall(r"(\w+) = 1\b", info.group().split("CPU :")[-1]) if info else []
    buffers = re.findall(r"load_tensors: +(\w+) model buffer size = +([0-9.]+) MiB", text)
    return {"features": names, "weights": {name: float(size) for name, size in buffers if float(size) > 0}}
