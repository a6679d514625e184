"""What clients measured of a tuning subject, and which candidate is the fastest; pure.

The fastest candidate is that with the least median, over the reports, of its time relative to the
best one of the same report. So clocks need not agree, and a single wrong report among three decides
nothing. Farms and clients that read a signed record decide by the same rule.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WANTED_REPORTS: Final = 3
"""Clients that are asked to measure a subject: an odd number, more than one."""
MAX_TUNING_REPORTS: Final = 9
"""Reports on one tuning subject."""
MAX_CANDIDATES: Final = 256
"""Candidates of one tuning subject."""
MAX_DEVICE_CHARS: Final = 200
REPORTER_BYTES: Final = 16
MAX_TIME_NS: Final = 3600 * 10**9
"""The longest time that a report states: an hour."""
_AGREEMENT: Final = 1.1
"""Reports agree if the fastest candidate is within this factor of each report's own fastest one."""


@dataclass(frozen=True, slots=True)
class TuningSubject:
    """What is measured: `candidates` kernels, by the digest of all of them, on a `device`."""

    digest: bytes
    device: str
    candidates: int

    @property
    def record_digest(self) -> bytes:
        """The digest under which its reports are stored, and the key of its signed record."""
        parts = (self.digest, self.device.encode(), b"%d" % self.candidates)
        framed = b"".join(struct.pack("<I", len(part)) + part for part in parts)
        return hashlib.sha256(b"tuning\0" + framed).digest()


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The time of each candidate, 0 for one that was not measured; `reporter` is 16 bytes."""

    reporter: bytes
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TuningState:
    """What is known of a subject: `winner` is None if the reports name no candidate.

    `is_settled` if enough clients reported and agree; `may_measure` if the caller may measure now.
    """

    winner: int | None
    reports: int
    is_settled: bool
    may_measure: bool = False


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """All reports on a subject, sorted by reporter."""

    subject: TuningSubject
    reports: tuple[TuningReport, ...]

    @property
    def state(self) -> TuningState:
        """What the reports say."""
        return tuning_state([report.times_ns for report in self.reports])


def tuning_state(reports: Sequence[Sequence[int]], *, may_measure: bool = False) -> TuningState:
    """What reports say about a subject."""
    winner = fastest_candidate(reports)
    agreeing = (
        winner is not None and max(_relative(times)[winner] for times in reports) <= _AGREEMENT
    )
    is_settled = len(reports) >= (WANTED_REPORTS if agreeing else MAX_TUNING_REPORTS)
    return TuningState(winner, len(reports), is_settled, may_measure)


def fastest_candidate(reports: Sequence[Sequence[int]]) -> int | None:
    """The candidate with the least median relative time; None without reports.

    A report gives each candidate's time, or 0. The upper median counts, and a candidate that a
    report lacks is infinitely slow there, so that more than half of the reports must speak for it.
    """
    if not reports:
        return None
    relative = [_relative(times) for times in reports]
    medians = [statistics.median_high(of_candidate) for of_candidate in zip(*relative, strict=True)]
    least = min(medians)
    return medians.index(least) if math.isfinite(least) else None


def _relative(times: Sequence[int]) -> list[float]:
    best = min((time for time in times if time), default=0)
    return [time / best if time else math.inf for time in times]
