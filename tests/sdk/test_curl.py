"""curl, over HTTP/1.1 and over HTTP/2 with prior knowledge: its own timeout, and a process that is killed."""
# contract: C-12, C-13, C-15
# field: F-01, F-03, F-08, F-13, F-18

import json
import subprocess

import pytest

from server import ANY, CHAT, STORY, ask, assert_gone, essay, reached, released

VERSIONS = {"HTTP/1.1": "--http1.1", "HTTP/2": "--http2-prior-knowledge"}
BOTH = pytest.mark.parametrize("version", VERSIONS)
# curl's exit code when the time it was given is over.
TIMED_OUT = 28


def curl(version, run_id, body, *more):
    words = ["curl", "--silent", "--no-buffer", VERSIONS[version], *more, "--header", f"X-Request-Id: {run_id}"]
    words += ["--header", "Content-Type: application/json", "--data-binary", json.dumps(body), CHAT]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


@BOTH
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["decode", "prefill"])
def test_its_own_timeout(version, stream, where):
    run_id, body = ask(essay() if where == "prefill" else STORY, stream=stream)
    caller = curl(version, run_id, body, "--max-time", "2")
    said, _ = caller.communicate(timeout=120)
    assert caller.returncode == TIMED_OUT, said
    run = released(run_id)
    assert_gone(run, ANY)
    assert run["delivery"] == "none" or stream and b"data: " in said, run


@BOTH
def test_killed_in_a_stream(version):
    run_id, body = ask(stream=True)
    caller = curl(version, run_id, body)
    for _ in range(20):
        assert caller.stdout.readline()
    caller.kill()
    run = released(run_id)
    caller.communicate(timeout=30)
    assert_gone(run, ("prefill", "before_first_token", "decode"))
    assert run["delivery"] == "partial", run


@BOTH
@pytest.mark.parametrize("state", ["prefilling", "decoding"])
def test_killed_while_it_waits_for_the_whole_answer(version, state):
    run_id, body = ask(essay() if state == "prefilling" else STORY)
    caller = curl(version, run_id, body)
    reached(run_id, state)
    caller.kill()
    caller.communicate(timeout=30)
    run = released(run_id)
    assert_gone(run, ("prefill", "before_first_token", "decode"))
    assert run["delivery"] == "none", run
