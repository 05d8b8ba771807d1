"""llama.cpp's own server as a child process on loopback: the peer that fixtures and benchmarks are compared with.

Invariant: the server is ended by the process id that started it, also when the caller fails. A server that cannot be started is a
`ServerError`, which says what to do about it.
"""

import contextlib
import http.client
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from processes import end, free_port, how_it_ended

DEFAULT_COMMAND = "../shared/stacks/llama-server.sh"
START_LIMIT_S = 300  # the first start may install it

WAY_OUT = (
    "Name a llama-server built on or for this machine: --server-cmd 'COMMAND', which is started as `COMMAND PORT SLOTS THREADS` and has to "
    "serve the same model on 127.0.0.1:PORT"
)


class ServerError(RuntimeError):
    """llama.cpp's server did not start, or not in time."""


class LlamaServer:
    """`with LlamaServer(command, slots, threads) as server: server.post("/tokenize", {...})`."""

    def __init__(self, command=DEFAULT_COMMAND, slots=1, threads=1, log=subprocess.DEVNULL, env=None):
        self.port = free_port()
        self.argv = [*shlex.split(command), str(self.port), str(slots), str(threads)]
        self.child, self.log, self.env = None, log, env or {}

    def __enter__(self):
        try:
            self.child = subprocess.Popen(self.argv, stdout=self.log, stderr=self.log, env={**os.environ, **self.env})
        except OSError as error:
            raise ServerError(f"cannot start llama.cpp's server `{self.argv[0]}`: {error.strerror}. {WAY_OUT}.") from error
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_until_ready(self):
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            if self.child.poll() is not None:
                ended = how_it_ended(self.child.returncode)
                raise ServerError(f"llama.cpp's server `{self.argv[0]}` {ended}, before it was ready. {WAY_OUT}.")
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                if self.get("/health").get("status") == "ok":
                    return
            time.sleep(0.2)
        raise ServerError(f"llama.cpp's server `{self.argv[0]}` was not ready within {START_LIMIT_S} s. {WAY_OUT}.")

    def stop(self):
        """Ends the server by its process id and waits for it."""
        end(self.child)

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def get(self, path):
        with urllib.request.urlopen(self.url(path), timeout=30) as reply:
            return json.load(reply)

    def post(self, path, body):
        request = urllib.request.Request(self.url(path), json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                return json.load(reply)
        except (OSError, http.client.HTTPException) as error:
            # A server that dies over a request closes the connection a moment before it can be seen to be gone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise ServerError(f"llama.cpp's server `{self.argv[0]}` {how_it_ended(self.child.wait(2))}. {WAY_OUT}.") from error
            raise


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
