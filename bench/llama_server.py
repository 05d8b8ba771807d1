"""llama.cpp's own server as a child process on loopback: the peer that fixtures and benchmarks are compared with.

Invariant: the server is ended by the process id that started it, also when the caller fails.
"""

import contextlib
import json
import shlex
import socket
import subprocess
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

    def __init__(self, command=DEFAULT_COMMAND, slots=1, threads=1):
        self.port = free_port()
        self.argv = [*shlex.split(command), str(self.port), str(slots), str(threads)]
        self.child = None

    def __enter__(self):
        self.child = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
