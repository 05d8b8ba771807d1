"""What `bench/upstream_beside.py` puts between a caller and an engine: nothing, kvit, or a gateway that others wrote.

Invariant: each is ended by the process id that started it, and none is measured before it has answered a request with a token.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import shlex
import socket
import subprocess
import time

from llama_server import free_port, how_it_ended
from upstream_caller import Caller, Names

MODEL = "smollm2"
PEERS = ["litellm", "litellm-cancel", "vllm-router", "sglang-router"]
DEFAULT_COMMAND = "../shared/stacks/gateway.sh"
ENVIRONMENT = "KVIT_TEST_PEERS"
START_LIMIT_S = 300  # the first start may install it
STOP_LIMIT_S = 20
AGAIN_S = 0.5
KEY = "Authorization: Bearer sk-x"  # the one that LiteLLM's configuration names


class Direct:
    """Nothing in between."""

    kind, headers, model = "direct", (), MODEL

    def __init__(self, engine):
        self.port = engine.port


class Peer:
    """`with Peer(kind, command, engine, log) as peer:`, which is started as COMMAND KIND PORT URL MODEL."""

    headers = (KEY,)

    def __init__(self, kind, command, engine, log, model=MODEL):
        self.kind, self.port, self.log, self.model, self.child = kind, two_free_ports(), log, model, None
        self.argv = [*shlex.split(command), kind, str(self.port), engine.url("").rstrip("/"), model]

    def __enter__(self):
        self.child = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        return self

    def __exit__(self, *_):
        self.child.terminate()
        try:
            self.child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def version(self):
        """That of the package which lies beside what its process has loaded: it may call itself what it likes."""
        loaded = pathlib.Path(f"/proc/{self.child.pid}/maps").read_text()
        places = sorted(set(re.findall(r"/\S+/site-packages(?=/)", loaded)))
        package = self.kind.removesuffix("-cancel")
        found = next(iter(importlib.metadata.distributions(name=package, path=places)), None)
        return found.version if found else "of unknown version"


def two_free_ports():
    """The first of two neighbours: a router shows its own metrics at the second."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port + 1))
            return port


def peer_command(given):
    """How the others are started: as given, else as the environment says, else as beside this repository. It has to be there."""
    command = given or os.environ.get(ENVIRONMENT) or DEFAULT_COMMAND
    if not any(pathlib.Path(word).is_file() for word in shlex.split(command)):
        raise FileNotFoundError(
            f"nothing starts other gateways: `{command}` is no file. Name a script in {ENVIRONMENT}, or with --peer-cmd, where a command has "
            "that; it is started as COMMAND KIND PORT URL MODEL, KIND being one of " + ", ".join(PEERS)
        )
    return command


def why_not(gateway):
    """Empty once it has answered with a token; else why it does not serve this engine."""
    names, said = Names(), "it does not listen"
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        child = getattr(gateway, "child", None)
        if child is not None and child.poll() is not None:
            return how_it_ended(child.returncode)
        with contextlib.suppress(OSError):
            caller = Caller(gateway, names.name("first"), True, names.prompt(1), 2)
            with contextlib.closing(caller.socket):
                caller.read_until(lambda: caller.over)
            if caller.tokens:
                return ""
            said = f"it answers {caller.answer.status}"
        time.sleep(AGAIN_S)
    return said
