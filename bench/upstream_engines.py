"""The two sides of `bench/upstreams.py`: an engine that others wrote, read by its own counters, and `kvit gateway` in front of it.

Invariant: both are ended by the process ids that started them, and an engine is only looked at when somebody asks: one that is polled may
have no moment left in which it notices a closed connection.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request

from llama_server import START_LIMIT_S, LlamaServer, ServerError
from processes import end, how_it_ended

SETTLE_LIMIT_S = 90
IDLE_LIMIT_S = 180
LOOK_PAUSE_S = 2  # between two looks of a wait
SAMPLE_S, SAMPLE_BUSY_S = 0.2, 0.02  # of llama-server: one that only answers looks takes less, one that is starved takes more
STEP_TOKENS = 128  # of an engine that is to work off the prompt of a cell in several steps
LOOK_LIMIT_S = 120  # an engine that answers looks between steps may be in a long one


def processor_s(pid):
    """Seconds of a processor that this process and those that it started have taken."""
    taken = 0.0
    with contextlib.suppress(OSError):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        taken = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            taken += processor_s(int(child))
    return taken


def counters(text):
    """name -> sum over labels, of Prometheus' text format."""
    sums = {}
    for name, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{[^}\n]*\})? ([0-9.eE+-]+)", text, re.MULTILINE):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


class Engine(LlamaServer):
    """What a cell needs to know of an engine: `present()`, `progress()` and `totals()`."""

    title, running, prompt, generated, cached_is_counted, setup = "", (), "", "", False, ""

    def text(self, path):
        with urllib.request.urlopen(self.url(path), timeout=LOOK_LIMIT_S) as reply:
            return reply.read().decode()

    def metrics(self):
        return counters(self.text("/metrics"))

    def present(self):
        """Requests that run or wait, by one look."""
        seen = self.metrics()
        return int(sum(seen[name] for name in self.running))

    def waiting(self):
        """Requests that wait, by one look."""
        return int(self.metrics()[self.running[-1]])

    def totals(self):
        """Prompt tokens and generated tokens of its whole life."""
        seen = self.metrics()
        return int(seen.get(self.prompt, 0)), int(seen.get(self.generated, 0))

    def busy(self):
        """Whether it has a request, so far as that can be seen without changing how it goes on."""
        return self.present() > 0

    def idle(self):
        """Waits until nothing runs or waits in it."""
        until = time.monotonic() + IDLE_LIMIT_S
        while (present := self.present()) != 0:
            if time.monotonic() > until:
                raise RuntimeError(f"{self.title} still has {present} requests after {IDLE_LIMIT_S} s")
            time.sleep(LOOK_PAUSE_S)


class LlamaCpp(Engine):
    """llama.cpp's llama-server: sums in /metrics, each slot in /slots."""

    title, kind = "llama.cpp", "llamacpp"
    small_steps = {"LLAMA_ARG_BATCH": str(STEP_TOKENS)}
    running = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    prompt, generated = "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"

    def progress(self):
        """(requests in work, tokens that they have generated)."""
        slots = [slot for slot in self.get("/slots") if slot["is_processing"]]
        tokens = [step.get("n_decoded", 0) for slot in slots for step in slot.get("next_token", [])]
        return len(slots), sum(tokens)

    def busy(self):
        """Whether it computes, by the processor's time that it takes. It notices the closed connection of a request whose answer is not
        streamed behind a second in which it answered nobody, so whoever looks at its counters meanwhile keeps that request alive."""
        before = processor_s(self.child.pid)
        time.sleep(SAMPLE_S)
        return processor_s(self.child.pid) - before >= SAMPLE_BUSY_S

    def begin(self):
        """Nothing: its slots count from each request's own beginning."""

    def version(self):
        return self.get("/props")["build_info"]


class Vllm(Engine):
    """vLLM's OpenAI server: sums in /metrics, which follow every step."""

    title, kind = "vLLM", "vllm"
    running = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    prompt, generated, cached_is_counted = "vllm:prompt_tokens_total", "vllm:generation_tokens_total", True
    # Its counters are those of its last step. In a prefill of one step they show the request when the first token is there, and not before.
    setup = f"{STEP_TOKENS} tokens a step at most"
    first = 0

    def __init__(self, command, log, slots=None):
        super().__init__(command, log=log)
        self.argv = [*shlex.split(command), str(self.port), "--max-num-batched-tokens", str(STEP_TOKENS)]
        self.argv += ["--max-num-seqs", str(slots)] if slots else []

    def _wait_until_ready(self):
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            if self.child.poll() is not None:
                raise ServerError(f"vLLM `{self.argv[0]}` {how_it_ended(self.child.returncode)}, before it was ready.")
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                if self.get("/v1/models"):
                    return
            time.sleep(0.5)
        raise ServerError(f"vLLM `{self.argv[0]}` was not ready within {START_LIMIT_S} s.")

    def progress(self):
        return self.present(), self.totals()[1] - self.first

    def begin(self):
        self.first = self.totals()[1]

    def version(self):
        return self.get("/version")["version"]


class Gateway:
    """`with Gateway(binary, engine, slots, log) as gateway:`, on a port that it chose itself. Callers name `model`, if there is one."""

    headers = ()

    def __init__(self, binary, engine, slots, log, model=None):
        self.model = model
        upstream = f"{engine.url('').rstrip('/')},kind={engine.kind},slots={slots}" + (f",model={model}" if model else "")
        options = ["--port", "0", "--store", "none", "--upstream", upstream, "--queue-limit", "1000", "--connections-max", "2000"]
        self.argv, self.log, self.child, self.port = [binary, "gateway", *options], log, None, None

    def __enter__(self):
        self.child = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=self.log, text=True)
        try:
            for line in self.child.stdout:
                if found := re.match(r"listening on http://127\.0\.0\.1:(\d+)", line):
                    self.port = int(found[1])
                    break
            if self.port is None:
                raise RuntimeError(f"kvit gateway {how_it_ended(self.child.wait())} before it listened")
            threading.Thread(target=self.child.stdout.read, daemon=True).start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_until_ready(self):
        until = time.monotonic() + SETTLE_LIMIT_S
        while time.monotonic() < until:
            if self.ask("GET", "/v1/models")[1].get("data"):
                return
            time.sleep(0.1)
        raise RuntimeError("kvit gateway has met no engine")

    def stop(self):
        end(self.child)

    def ask(self, method, path):
        """(status, what it says)."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(link):
            link.request(method, path)
            reply = link.getresponse()
            body = reply.read()
        return reply.status, json.loads(body) if body.startswith((b"{", b"[")) else {}

    def run(self, name):
        """The run's record; empty while its request has not arrived."""
        status, record = self.ask("GET", f"/v1/runs/{name}")
        return record if status == 200 else {}

    def cancel(self, name):
        status, said = self.ask("POST", f"/v1/runs/{name}/cancel")
        if status not in (200, 202):
            raise RuntimeError(f"a cancel of {name} was answered {status}: {said}")

    def settled(self, name):
        """Its record once nothing of it can change any more."""
        until = time.monotonic() + SETTLE_LIMIT_S
        while not (record := self.run(name)).get("settled"):
            if time.monotonic() > until:
                raise RuntimeError(f"the run {name} has not settled within {SETTLE_LIMIT_S} s: {record}")
            time.sleep(0.05)
        return record


def file_limit():
    """Lets this process have as many open files as 300 callers at once need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
