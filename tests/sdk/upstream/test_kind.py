"""The gateway knows the engine for what it is: by its log, in which it says what it has met and why."""
# contract: C-29

import os
import re
import subprocess
import threading

import pytest

from conftest import write
from server import get
from through import BEHIND, ENGINE, HOP, KEY_FILE, KIND, SCRIPTED

# What each is to the gateway. Ollama is one of many that speak OpenAI's protocol.
KNOWN = {"kvit": "kvit", "vllm": "vllm", "llamacpp": "llamacpp", "sglang": "sglang", "ollama": "openai"}
# Where an engine of a kind says which release it is.
VERSIONS = {"vllm": ("/version", "version"), "llamacpp": ("/props", "build_info"), "sglang": ("/server_info", "version")}
PATIENCE_S = 60


def met(url, key_file=""):
    """(kind, the whole line) as a gateway of its own says."""
    at = f"{url},key_file={key_file}" if key_file else url
    words = [os.environ["KVIT_TEST_BINARY"], "gateway", "--log", "info", "--port", "0", "--store", "none", "--upstream", at]
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
    kind, line = met(BEHIND)
    assert kind == KNOWN.get(KIND, kind), line
    why = "models are owned by kvit" if kind == "kvit" else f"counters are {kind}'s"
    assert kind == "openai" or f"its {why}" in line, line
    path, name = VERSIONS.get(kind, (None, None))
    engine = f"{kind} {get(path, BEHIND)[name] if path else '(no version told)'}"
    if not HOP:
        write("engine", engine, kind, "passed")
        return
    # What stands behind another gateway cannot be seen through it, and so cannot prove anything.
    seen, line = met(ENGINE, KEY_FILE)
    assert seen == "openai" and "nothing in its answers is another engine's" in line, line
    engine, place = (f"a script in {kind}'s form", f"a script of {kind}") if SCRIPTED else (engine, kind)
    write("engine", f"{HOP} {os.environ['KVIT_TEST_HOP_VERSION']} in front of {engine}", f"{HOP} in front of {place}", "passed")


@pytest.mark.skipif(not (HOP and SCRIPTED), reason="only a scripted engine says what it was asked for")
def test_a_gateway_of_others_is_not_asked_to_ask_its_models():
    # LiteLLM's `/health` is a completion of each model that it has.
    asked = len(get("/scripted", BEHIND)["asked"])
    met(ENGINE, KEY_FILE)
    assert len(get("/scripted", BEHIND)["asked"]) == asked
