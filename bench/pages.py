"""What the drivers write: a made part of a document, and the words for the machine that it was made on.

Invariant: nothing of a document is changed but what stands between two marker lines that are there once each.
"""

import os
import pathlib
import platform
import re


def put(text, begin, end, made):
    """`text` with what stands between the two markers replaced."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"there must be one line `{begin}` and behind it one line `{end}`")
    return text[: text.index(begin) + len(begin)] + f"\n{made}\n" + text[text.index(end) :]


def machine():
    """What the figures depend on: processor and cores, no name."""
    info = pathlib.Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return f"{os.cpu_count() or '?'} cores of {found[1].strip() if found else platform.machine()}"
