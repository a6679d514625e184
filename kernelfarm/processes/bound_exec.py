"""Runs a command that gets SIGTERM when its parent dies.

It is run as a script, `python -IS bound_exec.py PARENT_PID COMMAND [ARGUMENT...]`. The child itself
must request the kernel's parent-death signal, before its exec. Python code between the fork and the
exec is unsafe in a parent with gRPC threads, so this is a program of its own.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Requests the signal and executes the command."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent ended before this process started")
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")


if __name__ == "__main__":
    main()
