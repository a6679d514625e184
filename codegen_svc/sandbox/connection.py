"""A worker's connection with one child: job out, result and end in, within a time and a size."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from codegen_svc.sandbox.child import JOB_HEADER

_CHUNK_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = 1 << 16
# A supervisor that is told to end its compilation does so at once.
_END_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class End:
    """How a compilation ended.

    `ended_for` is empty if it ended by itself, else `time`, `output`, `memory`, `processes`, or how
    its supervisor was lost. `exit_status` is negative for a signal. `log` is what the toolchain
    printed last.
    """

    result: bytes
    ended_for: str
    exit_status: int = 0
    processor_s: float = 0.0
    peak_bytes: int = 0
    log: str = ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one compilation gets: time by the clock, processor time of each process, niceness."""

    wall_s: float
    processor_s: int
    niceness: int = 0


class Child:
    """A confined process that waits for its one job. Leaving the block ends it."""

    def __init__(self, job: int, result: int, supervision: socket.socket) -> None:
        self._job = job
        self._result = result
        self._supervision = supervision

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in (self._job, self._result):
            if descriptor >= 0:
                os.close(descriptor)
        self._supervision.close()  # ends what still runs

    def run(self, job: bytes, given: Allowance, output_bytes: int) -> End:
        """Gives the job and waits for its end, which it brings about when the time is over."""
        ends_s = time.monotonic() + given.wall_s
        self._send(JOB_HEADER.pack(len(job), given.processor_s, given.niceness) + job)
        parts: list[bytes] = []
        ended_for = self._read(parts, ends_s, output_bytes)
        if ended_for:
            with contextlib.suppress(OSError):
                self._supervision.shutdown(socket.SHUT_WR)
        record = self._record()
        if record is None:
            return End(b"", ended_for or "its supervisor was lost")
        return End(
            result=b"".join(parts),
            ended_for=ended_for or str(record["ended_for"]),
            exit_status=int(record["exit"]),
            processor_s=float(record["processor_s"]),
            peak_bytes=int(record["peak_bytes"]),
            log=str(record["log"]),
        )

    def _send(self, content: bytes) -> None:
        view = memoryview(content)
        with contextlib.suppress(BrokenPipeError):  # its end tells why
            while view:
                view = view[os.write(self._job, view) :]
        os.close(self._job)
        self._job = -1

    def _read(self, parts: list[bytes], ends_s: float, output_bytes: int) -> str:
        """Takes the result; why it must be ended, empty if it ended by itself."""
        left_bytes = output_bytes
        while True:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                return "time"
            if not select.select([self._result], [], [], left_s)[0]:
                continue
            part = os.read(self._result, _CHUNK_BYTES)
            if not part:
                return ""
            left_bytes -= len(part)
            if left_bytes < 0:
                return "output"
            parts.append(part)

    def _record(self) -> dict[str, Any] | None:
        """What the supervisor reports at the end; None if it is gone or does not answer."""
        self._supervision.settimeout(_END_WITHIN_S)
        content = b""
        try:
            while len(content) < _RECORD_BYTES and (part := self._supervision.recv(_RECORD_BYTES)):
                content += part
            record: dict[str, Any] = json.loads(content)
        except (OSError, ValueError):
            return None
        return record
