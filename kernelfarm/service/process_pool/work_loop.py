"""The main loop of a work process: one job after another, within limits of the kernel."""

from __future__ import annotations

import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kernelfarm.errors import KernelfarmError, WorkMemoryError, error_facts
from kernelfarm.service.collector import Collector
from kernelfarm.service.priority import yield_to_services
from kernelfarm.service.process_pool.frames import FrameKind, packed_facts, receive, send

Job = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Computes results from arguments; raises a `KernelfarmError` for faults of the caller."""

Jobs = Mapping[str, Job]

_OPEN_FILES = 64
_FIRST_TO_GO = "800"
_MAX_TRACE_CHARS = 8192


def work(peer: socket.socket, jobs: Jobs, max_memory_bytes: int) -> None:
    """Runs jobs from a socket until it is closed."""
    _limit(max_memory_bytes)
    collector = Collector(max_calls=1)
    with suppress(EOFError, OSError):
        send(peer, FrameKind.READY, [b"%d" % os.getpid()])
        while True:
            _, (name, *arguments) = receive(peer)
            kind, parts = _run_job(jobs[name.decode()], arguments, max_memory_bytes)
            arguments.clear()
            send(peer, kind, [b"%d" % _memory_bytes(), *parts])
            parts = ()
            collector.count()  # after the reply, so that no caller waits for it


def _run_job(
    job: Job, arguments: Sequence[bytes], max_memory_bytes: int
) -> tuple[FrameKind, Sequence[bytes]]:
    try:
        return FrameKind.RESULT, job(arguments)
    except KernelfarmError as error:
        return FrameKind.ERROR, [*packed_facts(error_facts(error)), *_suspicious(error)]
    except MemoryError:
        limit = max_memory_bytes // (1 << 20)
        reported = WorkMemoryError(
            f"the work on this request needs more than {limit} MiB of memory, the limit; split the"
            " model at a graph break"
        )
        return FrameKind.ERROR, packed_facts(error_facts(reported))
    except Exception:  # the edge of a process: the service logs it
        return FrameKind.BUG, [_trace(sys.exc_info()[1])]


def _suspicious(error: KernelfarmError) -> list[bytes]:
    """The traceback of an error that an exception of Python caused, which may be a bug of ours."""
    cause = error.__cause__
    return [_trace(error)] if isinstance(cause, ArithmeticError | IndexError) else []


def _trace(error: BaseException | None) -> bytes:
    lines = traceback.format_exception(error)
    return "".join(lines)[-_MAX_TRACE_CHARS:].encode("utf-8", "replace")


def _limit(max_memory_bytes: int) -> None:
    yield_to_services()
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    if sys.platform == "linux":
        with suppress(OSError):  # if memory runs out, the kernel kills this process first
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


def _memory_bytes() -> int:
    """The memory of this process; on other systems than Linux, its maximum so far."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
