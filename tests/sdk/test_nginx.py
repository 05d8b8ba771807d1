"""A real nginx in front: whoever leaves it leaves kvit too, in every phase, streaming and not; and what nginx itself cuts is a closed caller.

nginx speaks HTTP/1.1 to kvit, as deployments do, and closes its side when its own client is gone (unless told `proxy_ignore_client_abort`).
"""
# contract: C-10, C-12, C-13, C-15
# field: F-02, F-04, F-08

import json
import socket
import time
import urllib.parse

import httpx
import pytest

import own
from edge import Edge
from server import ANY, LEFT, SERVER, STORY, ask, assert_gone, essay, look, reached, released, until

SERVERS = """
    server {
        listen 127.0.0.1:{port};
        location / { proxy_pass UPSTREAM; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 300s; }
        location /impatient/ { proxy_pass UPSTREAM/; proxy_http_version 1.1; proxy_read_timeout 1s; }
    }
"""


def before(upstream, folder):
    return Edge(folder, SERVERS.replace("UPSTREAM", upstream))


@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    edge = before(SERVER, tmp_path_factory.mktemp("nginx"))
    yield edge
    edge.end()


def post(edge, run_id, body, path="/v1/chat/completions"):
    """Sends the request on a raw connection and reads nothing."""
    data = json.dumps(body).encode()
    caller = socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(edge.url).port))
    head = f"POST {path} HTTP/1.1\r\nHost: edge\r\nX-Request-Id: {run_id}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    caller.sendall(head.encode() + data)
    return caller


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["prefilling", "decoding"])
def test_whoever_leaves_nginx_leaves_kvit(edge, state, stream):
    run_id, body = ask(essay() if state == "prefilling" else STORY, stream=stream)
    with post(edge, run_id, body):
        reached(run_id, state)
    run = released(run_id)
    assert_gone(run, ANY, LEFT)
    assert stream or run["delivery"] == "none", run
    # The proxy's own request is over too, and its log says by whom: 499, unless the stream's 200 had gone out already.
    assert until(lambda: edge.statuses()[-1:] == ["200" if stream else "499"]), edge.statuses()


def test_a_stream_is_passed_on_as_it_comes_though_nginx_buffers(edge):
    run_id, body = ask(stream=True, max_tokens=2000)
    with httpx.Client(timeout=120) as client:
        with client.stream("POST", f"{edge.url}/v1/chat/completions", json=body, headers={"X-Request-Id": run_id}) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            for _ in range(4):
                next(lines)
            assert look(run_id)["state"] in ("prefilling", "decoding"), "four events came through while the run was live"
    assert_gone(released(run_id), ("prefill", "before_first_token", "decode"))


def test_what_nginx_cuts_is_a_closed_caller(edge):
    run_id, body = ask()
    with httpx.Client(timeout=120) as client:
        answer = client.post(f"{edge.url}/impatient/v1/chat/completions", json=body, headers={"X-Request-Id": run_id})
    assert answer.status_code == 504, answer.text
    assert_gone(released(run_id), ANY, LEFT)


def test_comments_keep_a_silent_stream_alive_through_an_impatient_edge(tmp_path):
    """The stream waits behind a full engine for longer than nginx has patience."""
    with own.serve("--max-running", "1", "--keepalive-comment-ms", "200") as address:
        edge = before(address, tmp_path)
        try:
            with httpx.Client(timeout=120) as client:
                # Holds the engine until it is cancelled by name.
                with client.stream("POST", f"{address}/v1/chat/completions", json=ask(stream=True)[1], headers={"X-Request-Id": "first"}):
                    asked = ask(stream=True, max_tokens=4)[1]
                    with client.stream("POST", f"{edge.url}/impatient/v1/chat/completions", json=asked) as answer:
                        assert answer.status_code == 200
                        comments, lines = 0, answer.iter_lines()
                        start = time.monotonic()
                        while time.monotonic() - start < 3:
                            comments += next(lines) == ": keepalive"
                        assert comments, "it waited in the queue"
                        client.post(f"{address}/v1/runs/first/cancel")
                        assert "data: [DONE]" in list(lines), "it outlived nginx's second and was answered in full"
        finally:
            edge.end()
