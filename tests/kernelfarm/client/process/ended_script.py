"""A script in a process of its own, which must end; it prints the remaining threads."""

from __future__ import annotations

import os
import subprocess
import sys

WITHIN_S = 120.0
"""For a process that imports torch on a busy machine; one that hangs takes for ever."""

# What is registered first runs last: after ours.
PRINT_LEFT = """
import atexit, sys, threading
def left():
    names = [thread.name for thread in threading.enumerate() if "kernelfarm" in thread.name]
    print("left:", names, flush=True)
atexit.register(left)
"""


def ended(script: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script's process, once it ended; it must."""
    return subprocess.run(
        [sys.executable, "-c", PRINT_LEFT + script, *args],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
