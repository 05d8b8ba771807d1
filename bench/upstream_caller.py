"""A caller of `bench/upstreams.py` on a raw socket, so that its leaving is exactly a FIN or an RST, and its reading exactly what was read.

Invariant: what it says it has read (head, tokens, end) was read from the socket, in this order.
"""

import itertools
import json
import socket
import struct
import time

READ_LIMIT_S = 180


class Body:
    """An HTTP/1.1 answer, fed as it comes: its head, its body's bytes without their chunks, its end."""

    def __init__(self):
        self.raw, self.body, self.status, self.chunked, self.length = b"", b"", None, False, None

    def push(self, data):
        self.raw += data
        if self.status is None and b"\r\n\r\n" in self.raw:
            head, self.raw = self.raw.split(b"\r\n\r\n", 1)
            lines = head.decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            self.status = int(lines[0].split()[1])
            self.chunked = fields.get("transfer-encoding") == "chunked"
            self.length = int(fields["content-length"]) if "content-length" in fields else None
        if self.status is None:
            return
        if not self.chunked:
            self.body, self.raw = self.body + self.raw, b""
            return
        while b"\r\n" in self.raw:
            size, rest = self.raw.split(b"\r\n", 1)
            count = int(size.split(b";")[0], 16)
            if count == 0:
                self.length, self.raw = len(self.body), b""
                return
            if len(rest) < count + 2:
                return
            self.body, self.raw = self.body + rest[:count], rest[count + 2 :]

    def ended(self):
        return self.status is not None and self.length is not None and len(self.body) >= self.length

    def events(self):
        """The stream's events that are whole."""
        lines = self.body[: self.body.rfind(b"\n") + 1].split(b"\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def tokens(events):
    """How many of them show text."""
    return sum(1 for event in events for choice in event.get("choices", []) if choice.get("delta", {}).get("content"))


class Names:
    """What no request before has had: names, and prompts that no cache has. All of one process count together."""

    numbers, tag = itertools.count(1), format(time.time_ns() // 1_000_000, "x")

    def name(self, what):
        return f"{what}-{self.tag}-{next(self.numbers)}"

    def prompt(self, words):
        """It differs from every other from its first word on."""
        return " ".join([self.name("ask"), *(f"word{n % 97}" for n in range(words))])


class Caller:
    """One request through the gateway."""

    def __init__(self, gateway, name, stream, prompt, max_tokens, timeout_ms=None):
        ask = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
        if gateway.model:
            ask["model"] = gateway.model
        if stream:
            ask["stream_options"] = {"include_usage": True}
        body = json.dumps(ask).encode()
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"X-Request-Id: {name}",
            f"Content-Length: {len(body)}",
        ]
        head += [*gateway.headers, *([f"X-Request-Timeout-Ms: {timeout_ms}"] if timeout_ms else [])]
        self.gateway, self.name, self.answer, self.over = gateway, name, Body(), False
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
        self.began = time.monotonic()
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + body)

    def elapsed(self):
        return time.monotonic() - self.began

    @property
    def head(self):
        return self.answer.status is not None

    @property
    def tokens(self):
        return tokens(self.answer.events())

    def read(self, patience):
        """Reads what is there, or waits so long for something. False once there is nothing more to come."""
        if self.over:
            return False
        # 0 would be a mode of its own; a moment is enough for what has come.
        self.socket.settimeout(max(patience, 0.001))
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return True
        except ConnectionResetError:
            data = b""
        self.answer.push(data)
        self.over = not data or self.answer.ended()
        return not self.over

    def read_until(self, seen):
        """Reads until `seen()`; False if the answer was over before."""
        end = time.monotonic() + READ_LIMIT_S
        while not seen():
            if not self.read(0.2):
                return seen()
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name}: nothing of what was waited for came within {READ_LIMIT_S} s")
        return True

    def usage(self):
        """(prompt, of these cached, generated) as the engine said at the end of the stream."""
        said = [event["usage"] for event in self.answer.events() if event.get("usage")]
        if not said:
            raise RuntimeError(f"{self.name}: its stream ended without usage: {self.answer.body[-300:]!r}")
        details = said[-1].get("prompt_tokens_details") or {}
        return said[-1]["prompt_tokens"], details.get("cached_tokens") or 0, said[-1]["completion_tokens"]

    def leave(self, way):
        if way == "close":
            self.socket.shutdown(socket.SHUT_RDWR)  # a FIN, also where something is unread
            self.socket.close()
        elif way == "RST":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.close()
        elif way == "cancel":
            self.gateway.cancel(self.name)
        elif way == "deadline":
            self.read_until(lambda: self.over)

    def drop(self):
        self.socket.close()
