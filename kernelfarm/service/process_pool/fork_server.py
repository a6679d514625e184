"""A process that imports a service's jobs once, and forks a child for each byte that it is sent.

Run as `python -m kernelfarm.service.process_pool.fork_server SOCKET_FD PARENT_PID JOBS MEMORY`.
A fresh interpreter with one thread, which never used gRPC: forking it is safe, takes milliseconds
instead of the second of an import, and its children share its memory. Each byte that arrives
carries the descriptor of the socket over which the child will work.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys

from kernelfarm.service.collector import collect_rarely
from kernelfarm.service.process_pool.work_loop import Jobs, work

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: list[str]) -> int:
    """Serves until its parent closes the socket, or dies."""
    number, parent, module, max_memory_bytes = argv
    _end_with(int(parent))
    # A terminal's or a supervisor's signals are for the service, which ends us when it has drained.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our children
    control = socket.socket(fileno=int(number))
    jobs: Jobs = importlib.import_module(module).JOBS
    collect_rarely()
    control.sendall(b"R")
    own = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return 0
        for descriptor in descriptors:
            if os.fork() == 0:
                control.close()
                _end_with(own)
                work(socket.socket(fileno=descriptor), jobs, int(max_memory_bytes))
                os._exit(0)  # nothing of the fork server's is flushed or closed twice
            os.close(descriptor)


def _end_with(parent: int) -> None:
    """Asks to be killed when the parent ends; where that is not possible, a socket's end tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the service is gone
        sys.exit(main(sys.argv[1:]))
