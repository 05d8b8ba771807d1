"""A server of a test's own, for what needs options of its own: KVIT_TEST_BINARY with the model KVIT_TEST_MODEL, both of which
`cargo xtask sdk` names."""

import contextlib
import os
import subprocess


@contextlib.contextmanager
def serve(*options):
    """Starts one on a free port with these options, gives its address, and ends it."""
    command = [os.environ["KVIT_TEST_BINARY"], "serve", "--log", "warn", "--port", "0", *options, "--model", os.environ["KVIT_TEST_MODEL"]]
    # A flag goes before it: whoever wants a store names one of its own.
    environment = os.environ | {"KVIT_STORE": "none"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield next(line for line in process.stdout if line.startswith("listening on ")).split()[-1]
        finally:
            process.terminate()
