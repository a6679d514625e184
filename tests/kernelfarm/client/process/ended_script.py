"""A script in a process of its own, which must end; it prints the remaining threads."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.torch_children import run_python

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


def ended_with_torch(
    script: str, *args: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `ended`, for a script that uses PyTorch."""
    arguments = ("-c", PRINT_LEFT + script, *args)
    return run_python(arguments, {**os.environ, **environment}, timeout_s=WITHIN_S)


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
