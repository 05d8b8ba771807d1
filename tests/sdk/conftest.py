"""What holds around every test here: whatever it did, each block comes back and the next caller is served.

Cites: contract C-14, C-15; field F-45, F-58.
"""

import pytest

from server import assert_serves, get, rest, until

# Lines that tests leave for the end of the report.
NOTES = pytest.StashKey[list]()


@pytest.fixture(autouse=True)
def everything_comes_back():
    before = until(rest)
    assert before and before["conserved"], get("/v1/kv")
    yield
    after = until(rest)
    assert after and after["conserved"], get("/v1/kv")
    assert after["free"] + after["cached"] == before["free"] + before["cached"] == after["total"], after
    assert_serves()


@pytest.fixture
def note(request):
    """Takes a line to be shown below the results."""
    return request.config.stash.setdefault(NOTES, []).append


def pytest_terminal_summary(terminalreporter):
    for line in terminalreporter.config.stash.get(NOTES, []):
        terminalreporter.write_line(line)
