"""Processes of a test's own, for what needs options of its own: KVIT_TEST_BINARY with the model KVIT_TEST_MODEL, both of which
`cargo xtask sdk` names."""

import contextlib
import os
import subprocess


@contextlib.contextmanager
def started(command, *options, says="listening on ", model=True):
    """Starts one of the binary's commands with these options, gives the last word of the line in which it says where it listens, and ends it."""
    words = [os.environ["KVIT_TEST_BINARY"], command, *options, *(["--model", os.environ["KVIT_TEST_MODEL"]] if model else [])]
    # A flag goes before it: whoever wants a store names one of its own.
    environment = os.environ | {"KVIT_STORE": "none"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield next(line for line in process.stdout if says in line).split()[-1]
        finally:
            process.terminate()


def serve(*options):
    """Starts a server on a free port with these options, gives its address, and ends it."""
    return started("serve", "--log", "warn", "--port", "0", *options)
