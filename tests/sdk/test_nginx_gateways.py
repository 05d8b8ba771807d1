"""A real nginx in front of two real gateways on one PostgreSQL, configured as docs/gateways.md says: nothing is sticky, and whoever comes back
through it to the other gateway finds the same run.

Needs an empty PostgreSQL at KVIT_TEST_GATEWAYS_STORE (`cargo xtask sdk` starts one).
"""
# contract: C-5, C-8, C-26

import contextlib
import json
import os
import pathlib
import re

import httpx
import pytest

import own
from edge import Edge
from server import LEFT, ask, get, look, rest, until

STORE = os.environ.get("KVIT_TEST_GATEWAYS_STORE")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "gateways.md"
# Events that are read before a reader goes and comes back.
PIECE = 7

pytestmark = pytest.mark.skipif(not STORE, reason="KVIT_TEST_GATEWAYS_STORE names no PostgreSQL")


def documented(*addresses):
    """The page's configuration, for these gateways."""
    config = re.search(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    shown = [*re.findall(r"server (\d\S+);", config), *re.findall(r"listen (\d+);", config)]
    assert len(shown) == len(addresses) + 1, shown
    for old, new in zip(shown, [*addresses, "127.0.0.1:{port}"]):
        config = config.replace(f" {old};", f" {new};")
    return config


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    """nginx, and both gateways by the addresses that its log has."""
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(own.started("worker", "--log", "error", "--name", "w1", "--listen", "127.0.0.1:0", says="listening on "))
        options = ["--log", "error", "--port", "0", "--worker", worker.removeprefix("grpc://"), "--store", STORE]
        gateways = [stack.enter_context(own.started("gateway", *options, "--name", name, model=False)) for name in "ab"]
        for gateway in gateways:
            assert until(lambda: [w["state"] for w in get("/v1/workers", gateway)["data"]] == ["here"]), gateway
        addresses = [gateway.removeprefix("http://") for gateway in gateways]
        edge = Edge(tmp_path_factory.mktemp("gateways"), documented(*addresses))
        stack.callback(edge.end)
        yield edge, dict(zip(addresses, gateways))


def events(client, base, run_id, after, most=None):
    """A run's events behind a number: all, or the first few and then the reader goes."""
    found, number = [], None
    with client.stream("GET", f"{base}/v1/runs/{run_id}/events", params={"after": after}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = int(value)
            elif name == "data":
                found.append((number, json.loads(value)))
                if len(found) == most:
                    break
    return found


def answered(edge, what):
    """Which gateways answered requests that begin so, in the order of the answers' ends."""
    return [upstream for request, _, upstream in edge.log() if request.startswith(what)]


def test_a_run_is_read_on_through_nginx_at_whichever_gateway_answers(stand):
    edge, gateways = stand
    run_id = ask()[0]
    body = dict(input="Tell me a long story about a lighthouse.", max_output_tokens=120, temperature=0, ignore_eos=True, background=True)
    with httpx.Client(timeout=120) as client:
        created = client.post(f"{edge.url}/v1/responses", json=body, headers={"X-Request-Id": run_id})
        assert created.status_code == 200, created.text
        told = []
        while not told or told[-1][1].get("outcome") is None:
            piece = events(client, edge.url, run_id, told[-1][0] if told else 0, PIECE)
            assert piece, told
            told += piece
        assert [number for number, _ in told] == list(range(1, len(told) + 1)), "each event once, in order"
        for gateway in gateways.values():
            assert events(client, gateway, run_id, 0) == told, "and the same at each"
            assert look(run_id, gateway)["outcome"]["cause"] == "length"
    assert until(lambda: set(answered(edge, f"GET /v1/runs/{run_id}/events")) == set(gateways)), "both have answered"


def test_a_stream_is_cancelled_through_nginx_at_the_gateway_that_does_not_have_it(stand):
    edge, gateways = stand
    with httpx.Client(timeout=120) as client:
        for _ in range(2):
            before = len(answered(edge, "POST /v1/chat"))
            run_id, body = ask(stream=True)
            with client.stream("POST", f"{edge.url}/v1/chat/completions", json=body, headers={"X-Request-Id": run_id}) as answer:
                lines = (line for line in answer.iter_lines() if line.startswith("data: "))
                for _ in range(4):
                    next(lines)
                run = client.post(f"{edge.url}/v1/runs/{run_id}/cancel", params={"wait_ms": 60_000})
                assert run.status_code == 200 and run.json()["outcome"]["cause"] == "cancel_requested", run.text
                assert '"cancel_requested"' in list(lines)[-1]
            assert until(lambda: len(answered(edge, "POST /v1/chat")) > before), "its answer is over, and in the log"
            assert until(lambda: answered(edge, f"POST /v1/runs/{run_id}/cancel")), "and so is the cancel's"
            [by] = answered(edge, f"POST /v1/runs/{run_id}/cancel")
            assert by != answered(edge, "POST /v1/chat")[-1], "nginx goes round"
    for gateway in gateways.values():
        assert until(lambda: rest(gateway)), get("/v1/kv", gateway)


def test_whoever_leaves_nginx_leaves_the_gateway_behind_it_and_the_other_knows(stand):
    edge, gateways = stand
    run_id, body = ask(stream=True)
    with httpx.Client(timeout=120) as client:
        with client.stream("POST", f"{edge.url}/v1/chat/completions", json=body, headers={"X-Request-Id": run_id}) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            for _ in range(4):
                next(lines)

    def known(gateway):
        run = look(run_id, gateway)
        return run and run["settled"] and run

    for gateway in gateways.values():
        run = until(lambda: known(gateway))
        assert run and run["released"] and run["outcome"]["cause"] in LEFT, run
