"""A gateway of others before an engine: `hop.py KIND URL KEY_FILE` starts it, writes the key that it takes into the file, and says
`listening on URL VERSION` once it has answered a request with a token.

What starts it is the command that bench/upstream_peers.py starts them by (`KVIT_TEST_PEERS`: COMMAND KIND PORT URL MODEL).

Invariant: it is ended by its process id before this ends.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench"))

from upstream_peers import KEY, PEERS, Peer, peer_command, why_not

# How much of what it said is shown where it does not serve.
SAID_BYTES = 4000


class Engine:
    """What stands behind it."""

    def __init__(self, url):
        self.base = url.rstrip("/")

    def url(self, path):
        return f"{self.base}{path}"

    def model(self):
        """The first that it has."""
        with urllib.request.urlopen(self.url("/v1/models"), timeout=30) as answer:
            return json.load(answer)["data"][0]["id"]


def command():
    """What starts it, or a word on what to name."""
    try:
        return peer_command(None)
    except FileNotFoundError as why:
        sys.exit(str(why))


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in PEERS:
        sys.exit(f"usage: hop.py {'|'.join(PEERS)} URL KEY_FILE")
    kind, url, key_file = sys.argv[1:]
    engine = Engine(url)
    # It ends well when it is told to, and what it has started ends before it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryFile() as log, Peer(kind, command(), engine, log, engine.model()) as peer:
        if said := why_not(peer):
            log.seek(0)
            sys.exit(f"{log.read()[-SAID_BYTES:].decode(errors='replace')}\n{kind} before {url}: {said}")
        pathlib.Path(key_file).write_text(KEY.split()[-1])
        os.chmod(key_file, 0o600)
        print(f"listening on http://127.0.0.1:{peer.port} {peer.version()}", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
