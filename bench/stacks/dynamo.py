"""Dynamo's frontend with its mocker, an engine that computes nothing and keeps the pace of one, and the network that they stand in.

Its processes listen at all addresses of the machine. So they are started only in a network namespace that has nothing but `lo`: the driver
starts itself again in there.

Invariant: outside of such a namespace nothing of Dynamo is started.
"""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from gateways import STACKS
from hops import SLOTS
from processes import end, free_port, how_it_ended

RELEASE = "1.6.1"
VENV = STACKS / "venv-dynamo"
PYTHON = VENV / "bin/python"
NEEDS = "pydantic uvloop aiohttp msgspec prometheus-client pyzmq redis tqdm transformers zstandard kubernetes".split()
MODEL = STACKS / "smollm2-hf"  # tokenizer and configuration; its weights are not read
START_LIMIT_S = 180
KIND, NAME = "dynamo", "smollm2"
SAME = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]


def missing(may, log):
    """Installs it if that may be; what is to be done where it is not there, or nothing."""
    if not MODEL.is_dir():
        return f"the model as a folder of transformers is not at {MODEL}: `cargo xtask stacks --engine vllm alone` leaves it there"
    if subprocess.run(["unshare", "--net", "true"], stdout=log, stderr=log).returncode:
        return "its processes listen at all addresses, so it needs a network namespace, and `unshare --net` may not make one here"
    pip = [str(PYTHON), "-m", "pip", "install", "-q"]
    commands = [["python3", "-m", "venv", str(VENV)]]
    commands += [[*pip, "--no-deps", f"ai-dynamo=={RELEASE}", f"ai-dynamo-runtime=={RELEASE}"], [*pip, *NEEDS]]
    if list(VENV.glob(f"lib/python3*/site-packages/ai_dynamo_runtime-{RELEASE}.dist-info")):
        return ""
    if not may:
        return "it is not installed: `" + " && ".join(" ".join(words) for words in commands) + "`"
    for words in commands:
        if subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode:
            return f"it could not be installed: `{' '.join(words)}` failed (see --log)"
    return ""


def inside(argv):
    """Runs that program in a network of its own that has nothing but `lo`. Returns its exit code."""
    up = 'ip link set lo up && exec "$@"'
    return subprocess.run(["unshare", "--net", "sh", "-c", up, "sh", *argv]).returncode


def is_inside():
    """Whether there is no network but `lo`."""
    return os.listdir("/sys/class/net") == ["lo"] or _links() == ["lo"]


def _links():
    """The namespace's own links: /sys may still be the one of the namespace before."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
    return [line.split(":")[0].strip() for line in lines]


class Dynamo:
    """`with Dynamo(log) as engine:` Its frontend answers requests."""

    kind = KIND

    def __init__(self, log):
        self.log, self.children, self.port = log, [], free_port()

    def __enter__(self):
        if not is_inside():
            raise RuntimeError("Dynamo is started only where there is no network but `lo`")
        self.folder = tempfile.TemporaryDirectory(prefix="kvit-dynamo-")
        try:
            self.start("dynamo.mocker", "--model-path", MODEL, "--model-name", NAME, "--max-num-seqs", SLOTS)
            self.child = self.start("dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", self.port)
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, module, *words):
        argv = [str(word) for word in (PYTHON, "-m", module, *words, *SAME)]
        environment = {**os.environ, "DYN_FILE_KV": self.folder.name}
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment)
        self.children.append(child)
        return child

    def wait(self):
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            for child in self.children:
                if child.poll() is not None:
                    raise RuntimeError(f"`{' '.join(child.args[1:3])}` {how_it_ended(child.returncode)} before it was ready (see --log)")
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5) as reply:
                    if NAME in reply.read().decode():
                        return
            time.sleep(0.5)
        raise RuntimeError(f"Dynamo was not ready within {START_LIMIT_S} s (see --log)")

    def __exit__(self, *_):
        for child in reversed(self.children):
            end(child)
        self.folder.cleanup()

    def version(self):
        return RELEASE
