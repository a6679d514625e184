"""`python -m codegen_svc.sandbox.zygote`: warms up a toolchain, and forks children for jobs.

It serves one worker process over a socket pair. It first sends a `ZygoteHello`. It then answers
each request with the worker's ends of the connections of a confined child that waits for jobs. It
forks the next child while the worker uses the last one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codegen_svc.backends.contract import Backend, needs_of
from codegen_svc.backends.registry import find_backend
from codegen_svc.sandbox.child import ChildEnds, run_child
from codegen_svc.sandbox.hello import ZygoteHello
from codegen_svc.sandbox.level import ConfinementLevel, Mechanism
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.namespaces import enter_shared_namespaces, mount_memory
from codegen_svc.sandbox.restrictions import Confinement, reached_level
from codegen_svc.sandbox.system_calls import die_with_parent
from codegen_svc.sandbox.toolchain_files import readable_paths, writable_paths
from codegen_svc.sandbox.warm_up import warm_up
from kernelfarm.errors import InternalError, KernelfarmError, error_facts

# Most results fit: their processes then need not wait until the worker reads.
_RESULT_PIPE_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _ForkedChild:
    """The worker's ends of the connections of a child that waits for jobs."""

    job: int
    result: int
    supervision: socket.socket


def main(argv: list[str]) -> int:
    """Serves until the worker closes its end of the socket pair."""
    parser = argparse.ArgumentParser(prog="python -m codegen_svc.sandbox.zygote")
    parser.add_argument("--vendor", required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--limits", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args(argv)
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when to end
    worker = socket.socket(fileno=arguments.socket)
    limits = SandboxLimits.from_json(arguments.limits)
    _serve(worker, arguments.vendor, limits, arguments.folder)
    sys.stdout.flush()
    os._exit(0)  # some toolchains print errors when the interpreter ends


def _serve(worker: socket.socket, vendor: str, limits: SandboxLimits, base: Path) -> None:
    level = reached_level()
    if Mechanism.NAMESPACES in level.mechanisms:
        enter_shared_namespaces()
        mount_memory(base, limits.file_bytes)
    try:
        started_s = time.monotonic()
        backend = find_backend(vendor)
        warm_up(backend)
        warm_up_ms = (time.monotonic() - started_s) * 1e3
        _check_threads()
        confinement = _confinement(backend, level, limits)
        hello = ZygoteHello(
            backend.fingerprint(),
            backend.makes_runnable_binaries(),
            str(level),
            warm_up_ms,
            confinement.takes_many_jobs,
            # Whether a program is left over from a kernel can be seen only before the next begins.
            confinement.takes_many_jobs and not confinement.may_start_programs,
        )
    except KernelfarmError as error:
        worker.sendall(ZygoteHello(reason=error_facts(error).reason, message=str(error)).to_bytes())
        return
    gc.collect()
    gc.freeze()  # children share these pages
    worker.sendall(hello.to_bytes())
    _fork_on_request(worker, backend, confinement, base)


def _confinement(backend: Backend, level: ConfinementLevel, limits: SandboxLimits) -> Confinement:
    needs = needs_of(backend)
    return Confinement(
        level=level,
        limits=limits,
        readable=readable_paths(backend),
        writable=writable_paths(needs),
        may_start_programs=needs.starts_programs,
        takes_many_jobs=needs.takes_many_jobs,
    )


def _fork_on_request(
    worker: socket.socket, backend: Backend, confinement: Confinement, base: Path
) -> None:
    while True:
        child = _fork_child(worker, backend, confinement, base)
        if not worker.recv(1):
            return
        descriptors = [child.job, child.result, child.supervision.fileno()]
        socket.send_fds(worker, [b"c"], descriptors)
        os.close(child.job)
        os.close(child.result)
        child.supervision.close()
        _reap()


def _reap() -> None:
    """Reaps ended supervisors; their processor time then counts as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_child(
    worker: socket.socket, backend: Backend, confinement: Confinement, base: Path
) -> _ForkedChild:
    job_there, job_here = os.pipe()
    result_here, result_there = os.pipe()
    with contextlib.suppress(OSError):  # the host limits the memory of a user's pipes
        fcntl.fcntl(result_there, fcntl.F_SETPIPE_SZ, _RESULT_PIPE_BYTES)
    here, there = socket.socketpair()
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            worker.close()
            here.close()
            os.close(job_here)
            os.close(result_here)
        run_child(backend, confinement, base, ChildEnds(job_there, result_there, there))
    os.close(job_there)
    os.close(result_there)
    there.close()
    return _ForkedChild(job_here, result_here, here)


def _check_threads() -> None:
    """Raises InternalError if a toolchain left threads, because a fork does not copy them."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise InternalError(f"the warmed-up toolchain has {threads} threads; expected 1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
