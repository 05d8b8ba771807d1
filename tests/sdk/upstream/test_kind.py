"""The gateway knows the engine for what it is: by its log, in which it says what it has met and why."""
# contract: C-29

import os
import re
import subprocess
import threading

from conftest import write
from server import get
from through import ENGINE, KIND

# What each is to the gateway. A kvit that is reached over HTTP is one of many that speak OpenAI's protocol.
KNOWN = {"kvit": "openai", "vllm": "vllm", "llamacpp": "llamacpp", "sglang": "sglang"}
# Where an engine of a kind says which release it is.
VERSIONS = {"vllm": ("/version", "version"), "llamacpp": ("/props", "build_info"), "sglang": ("/server_info", "version")}
PATIENCE_S = 60


def met():
    """(kind, the whole line) as a gateway of its own says."""
    words = [os.environ["KVIT_TEST_BINARY"], "gateway", "--log", "info", "--port", "0", "--store", "none", "--upstream", ENGINE]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as gateway:
        # Nothing else ends the reading if it meets nobody.
        watch = threading.Timer(PATIENCE_S, gateway.kill)
        watch.start()
        try:
            line = next((line for line in gateway.stderr if ": met " in line), None)
        finally:
            watch.cancel()
            gateway.terminate()
            gateway.communicate(timeout=PATIENCE_S)
    assert line, f"it met nobody within {PATIENCE_S} s"
    return re.search(r'kind="(\w+)"', line)[1], line


def test_it_is_met_as_what_it_is():
    kind, line = met()
    assert kind == KNOWN.get(KIND, kind), line
    assert kind == "openai" or f"its counters are {kind}'s" in line, line
    path, name = VERSIONS.get(kind, (None, None))
    write("engine", get(path, ENGINE)[name] if path else "", kind, "passed")
