"""A simulated engine: no model, answers by a script, in the form of vLLM, llama.cpp, SGLang or Ollama (forms.py).
`scripted_engine.py KIND` says `listening on URL` and serves until it is ended.

It notices a caller's close at once and drops its request; `GET /scripted` says what it has in its hands and what it has seen.
"""

import http.server
import json
import re
import select
import signal
import socket
import sys
import threading

from forms import FORMS, event

# Words of an answer without a script, with letters that need more than a byte: what is split or joined wrongly shows.
RIVERS = ["Rhône", ",", " Tiber", ",", " Donau", " –", " drei", " Flüsse", " \U0001f30a", "."]
CITIES = ("Paris", "Rome", "Oslo")
# Seconds between two tokens of a long answer, so that it outlasts whoever leaves.
PACE = 0.005
# Tokens of an answer whose request names no end.
TOKENS_MAX = 3000

# Tokens of a call that nobody is shown: what stands around its name and its arguments.
MARKS = 8


class Gone(Exception):
    """The caller has closed its connection."""


def pieces(text):
    """A text as a model's tokens might cut it."""
    return re.findall(r"\s*\w{1,4}|\s*\W", text)


def calls(request):
    """What is called, if the request has tools that may be called: of each city that it asks about the weather."""
    tools, last = request.get("tools") or [], request["messages"][-1]
    if not tools or request.get("tool_choice") == "none" or last["role"] == "tool":
        return []
    name = tools[0]["function"]["name"]
    return [(name, json.dumps({"city": city, "unit": "celsius"})) for city in CITIES if city in str(last["content"])]


def script(request, is_strict):
    """The tokens of each answer, and what it calls."""
    if not request["messages"]:
        raise ValueError("messages is empty")
    kind = (request.get("response_format") or {}).get("type", "text")
    if kind not in ("text", "json_object", "json_schema"):
        if is_strict:
            raise ValueError(f"response_format type must be text, json_object or json_schema, and is {kind}")
        kind = "text"
    called = calls(request)
    if called:
        return [], called
    if kind != "text":
        return pieces('{"city": "Paris", "degrees": 21}'), []
    if "long" in str(request["messages"][-1]["content"]):
        return [f" {n}" for n in range(TOKENS_MAX)], []
    return RIVERS, []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Nothing: nobody reads it."""

    def do_GET(self):
        engine = self.server
        told = engine.form.told(engine.running)
        told["/scripted"] = {"running": engine.running, "closed": engine.closed, "aborts": engine.aborts, "asked": engine.asked}
        body = told.get(self.path)
        self.whole(200 if body is not None else 404, body if body is not None else {"detail": "Not Found"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine = self.server
        if self.path == "/abort_request" and engine.form.kind == "sglang":
            engine.aborts.append(body["rid"])
            return self.whole(200, {})
        if self.path == "/v1/completions" and engine.form.kind == "vllm" and body.get("min_tokens") == 2:
            # A gateway's witness: two tokens, which show that a step is over.
            two = {"index": 0, "text": "a a", "finish_reason": "length"}
            return self.whole(200, {"object": "text_completion", "choices": [two], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
        if self.path != "/v1/chat/completions":
            return self.whole(404, {"detail": "Not Found"})
        with engine.lock:
            engine.asked.append(sorted(body))
            engine.running += 1
        try:
            self.answer(body, engine.form(body))
        except ValueError as why:
            self.whole(400, engine.form.error(str(why)))
        except (Gone, ConnectionError):
            engine.closed += 1
            self.close_connection = True
        finally:
            with engine.lock:
                engine.running -= 1

    def answer(self, request, form):
        tokens, called = script(request, form.is_strict)
        most = next(filter(None, map(request.get, form.caps)), TOKENS_MAX)
        finish = form.ended_by(called) if len(tokens) <= most else "length"
        tokens, n = tokens[:most], min(request.get("n") or 1, form.answers_max)
        slow = len(tokens) > len(RIVERS) * 2 and not called
        prompt = sum(len(str(message.get("content")).split()) for message in request["messages"])
        made = len(tokens) + sum(MARKS + len(pieces(arguments)) for _, arguments in called)
        form.usage = form.counted(prompt, made * n)
        wants = bool(request.get("logprobs")) and form.has_logprobs
        if not request.get("stream"):
            for _ in tokens if slow else []:
                self.wait(PACE)
            said = ("".join(tokens), called, finish, form.logprobs(tokens) if wants else None)
            return self.whole(200, form.whole([said] * n, form.usage))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if form.kind in ("llamacpp", "ollama") else "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # Answers take turns, as a batch does; llama.cpp begins with the last.
        order = range(n) if form.kind != "llamacpp" else range(n - 1, -1, -1)
        for first in filter(None, map(form.first, order)):
            self.send(first)
        for token in tokens:
            if slow:
                self.wait(PACE)
            for index in order:
                self.send(form.text(index, token, form.logprobs([token]) if wants else None))
        for index in order:
            for number, (name, arguments) in enumerate(called):
                for chunk in form.call(index, number, name, pieces(arguments)):
                    self.send(chunk)
            self.send(form.last(index, finish))
        for chunk in [*form.ending(), "[DONE]"]:
            self.send(chunk)
        self.wfile.write(b"0\r\n\r\n")

    def wait(self, seconds):
        """For so long, unless the caller closes."""
        if select.select([self.connection], [], [], seconds)[0] and not self.connection.recv(1, socket.MSG_PEEK):
            raise Gone

    def send(self, value):
        data = event(value)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def whole(self, status, body):
        is_text = isinstance(body, str)
        data = (body if is_text else json.dumps(body, ensure_ascii=False)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4" if is_text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Engine(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, form):
        super().__init__(("127.0.0.1", 0), Handler)
        self.form, self.lock = form, threading.Lock()
        self.running, self.closed, self.aborts, self.asked = 0, 0, [], []

    def handle_error(self, request, address):
        """A caller that closes while it is waited for has done nothing wrong."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, address)


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in FORMS:
        sys.exit(f"usage: scripted_engine.py {'|'.join(FORMS)}")
    engine = Engine(FORMS[sys.argv[1]])
    # It ends well when it is told to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on http://127.0.0.1:{engine.server_port}", flush=True)
    engine.serve_forever()


if __name__ == "__main__":
    main()
