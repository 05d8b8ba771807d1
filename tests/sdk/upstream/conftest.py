"""What holds around every test here (no run is left in the gateway, and whoever comes next is served), and the table's cells.

Cites: contract C-6, C-29; field F-45.
"""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from server import get, until
from through import ENGINE, GATEWAY, KIND, RIVERS, ended, model, post, run_name


# Where the cells of the table are written to, a line each: client, version, column and what came of a test, with tabs between them.
CELLS = os.environ.get("KVIT_TEST_CELLS")


def write(*words):
    if CELLS:
        with open(CELLS, "a", encoding="utf-8") as cells:
            cells.write("\t".join(words) + "\n")


def pytest_configure(config):
    config.addinivalue_line("markers", "does(what): the column of the table that the test stands in")


@pytest.fixture(scope="session", autouse=True)
def the_engine_is_met():
    assert until(lambda: get("/v1/models")["data"]), f"the gateway {GATEWAY} has met no engine at {ENGINE}"


@pytest.fixture(autouse=True)
def nothing_is_left(the_engine_is_met):
    yield
    assert until(lambda: all(worker["runs"] == 0 for worker in get("/v1/workers")["data"])), get("/v1/workers")
    name = run_name()
    answer = post(GATEWAY, {"model": model(), "messages": RIVERS, "max_tokens": 3, "temperature": 0}, **{"X-Request-Id": name})
    assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length", answer
    ended(name, answer["usage"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    mark = item.get_closest_marker("does")
    if mark and (report.when == "call" or not report.passed):
        came = "passed" if report.passed else "left out" if report.skipped else "failed"
        write(item.module.CLIENT, item.module.VERSION, mark.args[0], came)
    return report
