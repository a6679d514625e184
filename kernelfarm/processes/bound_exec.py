"""Runs a command that is told to end when its parent dies.

Run as a script, `python -IS bound_exec.py PARENT_PID COMMAND [ARGUMENT...]`: the kernel's
parent-death signal must be asked for in the child, between fork and exec, and running Python code
between the fork and the exec of a process with gRPC threads is unsafe.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Asks for the signal and becomes the command."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent ended before its child began")
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")


if __name__ == "__main__":
    main()
