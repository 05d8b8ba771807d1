"""The worker in examples/python-worker keeps the protocol, and one that does not is found out.

Cites: contract C-2, C-3, C-8, C-9, C-10, C-11, C-12, C-13, C-15, C-20, C-22, C-23, C-31.
"""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from broken_workers import BROKEN, EXAMPLE

KVIT = os.environ["KVIT_TEST_BINARY"]
HERE = os.path.dirname(os.path.abspath(__file__))


@contextlib.contextmanager
def worker(*command):
    """A worker's process; gives its address."""
    with subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on "), line
            yield line.removeprefix("listening on ").strip()
        finally:
            process.terminate()


def judged(address, *flags):
    """Each case's verdict, and what the command's exit code says."""
    done = subprocess.run([KVIT, "conformance", address, "--json", *flags], capture_output=True, text=True, timeout=500)
    report = json.loads(done.stdout)
    return {case["name"]: case for case in report["cases"]}, done.returncode, report


def test_the_worker_in_python_keeps_the_protocol(note):
    with worker(EXAMPLE / "worker.py", "--listen", "127.0.0.1:0") as address:
        cases, code, report = judged(address, "--drain")
    failed = [case for case in cases.values() if case["verdict"] == "fail"]
    assert not failed and code == 0, failed
    skipped = [case for case in cases.values() if case["verdict"] == "skipped"]
    assert not skipped, skipped
    assert report["passed"] == len(cases) >= 60
    note(f"the Python worker: all {report['passed']} cases passed")


@pytest.mark.parametrize("name", BROKEN)
def test_a_worker_that_breaks_the_protocol_is_found_out(name):
    case = BROKEN[name].finds
    with worker(os.path.join(HERE, "broken_workers.py"), name) as address:
        cases, code, _ = judged(address, "--drain", "--only", case, "--patience-ms", "3000")
    assert cases[case]["verdict"] == "fail" and code == 1, cases
