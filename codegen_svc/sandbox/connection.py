"""A worker's connection to one child: sends jobs, receives results within a time and a size."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

JOB_HEADER: Final = struct.Struct("<IIB?")
"""Length of the job in bytes, processor seconds, niceness to add (0 to 19), and whether it is the
process's last job."""
RESULT_HEADER: Final = struct.Struct("<Q")
"""Length of the result in bytes."""
JOB_BEGINS: Final = b"j"
"""To a supervisor: a compilation begins; check its resources."""
JOB_ENDED: Final = b"u"
"""To a supervisor: the compilation is over, and its process waits; report its usage."""

_CHUNK_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = 1 << 16
_READ_WITHIN_S: Final = 0.5
# A supervisor ends its compilation at once when asked to.
_END_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class CompilationEnd:
    """How a compilation ended.

    `is_over` is false if its process waits for another job. `ended_for` is empty if it ended by
    itself, else `time`, `output`, `memory`, `processes`, or why its supervisor was lost.
    `exit_status` is negative for a signal. `memory_bytes` and `tasks` (processes and threads) are
    those of a process that waits. `log` is the last text that the toolchain printed.
    """

    ended_for: str
    is_over: bool = True
    exit_status: int = 0
    processor_s: float = 0.0
    memory_bytes: int = 0
    tasks: int = 0
    log: str = ""


@dataclass(frozen=True, slots=True)
class JobReply:
    """What a process sent for a job, None without a result; and why it must be ended, or empty."""

    result: bytes | None
    ended_for: str


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits of one compilation: time by the clock, processor time of each process, niceness."""

    wall_s: float
    processor_s: int
    niceness: int = 0


@dataclass(frozen=True, slots=True)
class _JobAhead:
    """A job that its process has got, and begins when the present one ends."""

    wall_s: float
    is_last: bool


class SandboxProcess:
    """A confined process that compiles one job after the other.

    `jobs` is the number of its jobs so far, `processor_s` its processor time, `idle_since_s` the
    time at which its last job ended, `first_bytes` its memory after the first one. Its `niceness`
    can only grow.
    """

    def __init__(self, job: int, result: int, supervision: socket.socket) -> None:
        os.set_blocking(job, False)
        self._job = job
        self._result = result
        self._supervision = supervision
        self.jobs = 0
        self.processor_s = 0.0
        self.idle_since_s = 0.0
        self.first_bytes = 0
        self.niceness = 0
        self._ends_s = 0.0
        self._is_last = False
        self._ahead: _JobAhead | None = None
        self._is_busy = False
        self._received = b""

    @property
    def is_last(self) -> bool:
        """True if its present job is its last one."""
        return self._is_last

    @property
    def has_job_ahead(self) -> bool:
        """True if it has got another job than its present one."""
        return self._ahead is not None

    @property
    def is_busy(self) -> bool:
        """True if it has a job whose end was not read."""
        return self._is_busy

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._job < 0

    def close(self) -> None:
        """Ends the process; may be called twice."""
        for descriptor in (self._job, self._result):
            if descriptor >= 0:
                os.close(descriptor)
        self._job = self._result = -1
        self._supervision.close()

    def begin(self, job: bytes, time_limits: TimeLimits, *, is_last: bool) -> None:
        """Sends a job; `read` must follow, then `end`.

        After the last job, and after every end without a result, the process is over.
        """
        self._ends_s = time.monotonic() + time_limits.wall_s
        self._is_last = is_last
        self._is_busy = True
        self.jobs += 1
        self._notify(JOB_BEGINS)
        more_niceness = time_limits.niceness - self.niceness
        self.niceness = time_limits.niceness
        self._send(_message(job, time_limits, more_niceness, is_last=is_last), self._ends_s)

    def begin_ahead(self, job: bytes, time_limits: TimeLimits, *, is_last: bool) -> bool:
        """Sends a job that begins when the present one ends; False if it is too large for that.

        After `end` of the present job, it is the present one: its time begins when the result of
        the one before was read. Its priority is that of the one before.
        """
        content = _message(job, time_limits, 0, is_last=is_last)
        if len(content) > select.PIPE_BUF:  # up to this size a pipe takes all or nothing
            return False
        try:
            os.write(self._job, content)
        except (BlockingIOError, BrokenPipeError):
            return False
        self._ahead = _JobAhead(time_limits.wall_s, is_last)
        return True

    def has_sent_within(self, timeout_s: float) -> bool:
        """True as soon as the process has sent a part of its result or ended."""
        return bool(select.select([self._result], [], [], timeout_s)[0])

    def read(self, output_bytes: int) -> JobReply:
        """Waits for a job's result, and ends the process when its time is over."""
        # The caller may have been busy since: what the process has sent is read in any case.
        ends_s = max(self._ends_s, time.monotonic() + _READ_WITHIN_S)
        reply = JobReply(*self._read(ends_s, output_bytes))
        if reply.result is not None and not self._is_last:
            self._notify(JOB_ENDED)
            if self._ahead is not None:
                self._notify(JOB_BEGINS)
                self._ends_s = time.monotonic() + self._ahead.wall_s
        elif reply.ended_for:
            with contextlib.suppress(OSError):
                self._supervision.shutdown(socket.SHUT_WR)
        return reply

    def end(self, reply: JobReply) -> CompilationEnd:
        """How the job ended, when its supervisor has reported it."""
        record = self._record()
        if record is None:
            return CompilationEnd(reply.ended_for or "its supervisor was lost")
        return self._end(record, reply.ended_for)

    def _end(self, record: dict[str, Any], ended_for: str) -> CompilationEnd:
        before_s, self.processor_s = self.processor_s, float(record["processor_s"])
        self.idle_since_s = time.monotonic()
        self._is_busy = self._ahead is not None
        if self._ahead is not None:
            self.jobs += 1
            self._is_last, self._ahead = self._ahead.is_last, None
        return CompilationEnd(
            ended_for=ended_for or str(record.get("ended_for", "")),
            is_over="exit" in record,
            exit_status=int(record.get("exit", 0)),
            processor_s=self.processor_s - before_s,
            memory_bytes=int(record["memory_bytes"]),
            tasks=int(record["tasks"]),
            log=str(record.get("log", "")),
        )

    def _notify(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone; its record will be missing
            self._supervision.sendall(word)

    def _send(self, content: bytes, ends_s: float) -> None:
        """Sends as much as the process reads in time; the record says why it read no more."""
        view = memoryview(content)
        while view and (left_s := ends_s - time.monotonic()) > 0:
            select.select([], [self._job], [], left_s)
            try:
                view = view[os.write(self._job, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def _read(self, ends_s: float, output_bytes: int) -> tuple[bytes | None, str]:
        """The result or None, and why the process must be ended (empty if it need not be)."""
        content, missing, is_header = bytearray(), RESULT_HEADER.size, True
        while missing:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                return None, "time"
            if not select.select([self._result], [], [], left_s)[0]:
                continue
            # No more than this result: that of the next job may follow.
            part = os.read(self._result, min(missing, _CHUNK_BYTES))
            if not part:
                return None, ""
            content += part
            missing -= len(part)
            if is_header and not missing:
                (missing,) = RESULT_HEADER.unpack(content)
                content.clear()
                is_header = False
                if missing > output_bytes:
                    return None, "output"
        return bytes(content), ""

    def _record(self) -> dict[str, Any] | None:
        """The supervisor's next record; None if it is gone or does not answer."""
        self._supervision.settimeout(_END_WITHIN_S)
        try:
            while b"\n" not in self._received and len(self._received) < _RECORD_BYTES:
                part = self._supervision.recv(_RECORD_BYTES)
                if not part:
                    return None
                self._received += part
            # A process that ends after its result has two records, which may arrive together.
            line, _, self._received = self._received.partition(b"\n")
            record: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):
            return None
        return record


def _message(job: bytes, time_limits: TimeLimits, niceness: int, *, is_last: bool) -> bytes:
    return JOB_HEADER.pack(len(job), time_limits.processor_s, niceness, is_last) + job
