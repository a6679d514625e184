"""A process that imports a service's jobs once, and forks a child for each request of the service.

Run as `python -m kernelfarm.service.process_pool.fork_server SOCKET_FD PARENT_PID JOBS MEMORY`.
It is a new interpreter with one thread, which has never used gRPC. A fork of it is therefore safe,
takes milliseconds instead of a second for imports, and its children share its memory. Each request
is one byte with the descriptor of the socket for the child's jobs.
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
    """Serves until its parent closes the socket, or ends."""
    number, parent, module, max_memory_bytes = argv
    _end_with(int(parent))
    # The service handles the signals of a terminal or supervisor, drains, and ends this process.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
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
                os._exit(0)  # without flushing or closing the fork server's files
            os.close(descriptor)


def _end_with(parent: int) -> None:
    """Asks the kernel to kill this process when the parent ends.

    On other systems than Linux, the end of the socket ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the service has ended
        sys.exit(main(sys.argv[1:]))
