"""What clients measured: the reports on the candidates of a kernel, and the fastest candidate.

kf:...:tune:DIGEST  HASH  r:REPORTER -> times of one client; m:REPORTER -> until when it measures
kf:...:tune         ZSET  the records of the namespace by their last use

The fastest candidate is that with the least median, over the reports, of its time relative to the
best one of the same report. So clocks need not agree, and a single wrong report among three decides
nothing.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.limits import MANIFEST_TTL_S, MAX_TUNING_RECORDS, MAX_TUNING_REPORTS
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts

WANTED_REPORTS: Final = 3
"""Clients that are asked to measure a subject: an odd number, more than one."""
MEASURING_MS: Final = 60_000
"""How long a client that was asked to measure may take; then another one is asked."""
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
        """The digest under which its reports are stored."""
        parts = (self.digest, self.device.encode(), b"%d" % self.candidates)
        framed = b"".join(struct.pack("<I", len(part)) + part for part in parts)
        return hashlib.sha256(b"tuning\0" + framed).digest()


@dataclass(frozen=True, slots=True)
class TuningState:
    """What is known of a subject: `winner` is None if the reports name no candidate.

    `is_settled` if enough clients reported and agree; `may_measure` if the caller may measure now.
    """

    winner: int | None
    reports: int
    is_settled: bool
    may_measure: bool = False


class TuningRecords:
    """The reports of one namespace."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._scripts = AsyncScripts(client)
        self._redis_keys = redis_keys

    async def find(
        self, subject: TuningSubject, reporter: str, *, can_measure: bool
    ) -> TuningState:
        """The state of a subject; lets the reporter measure if more reports are wanted.

        Raises:
            UnavailableError: Redis does not serve.
        """
        state = await self._run(subject, reporter, wanted=0)
        if not can_measure or state.is_settled:
            return state
        wanted = WANTED_REPORTS if state.reports < WANTED_REPORTS else MAX_TUNING_REPORTS
        return await self._run(subject, reporter, wanted=wanted)

    async def add(
        self, subject: TuningSubject, reporter: str, times_ns: Sequence[int]
    ) -> TuningState:
        """Stores a report, and returns the state with it; 0 means that a time was not measured.

        Raises:
            UnavailableError: Redis does not serve.
        """
        return await self._run(subject, reporter, times_ns=times_ns)

    async def _run(
        self, subject: TuningSubject, reporter: str, wanted: int = 0, times_ns: Sequence[int] = ()
    ) -> TuningState:
        parameters = lua.Tuning(
            record=self._redis_keys.tuning(subject.record_digest),
            records=self._redis_keys.tuning_index,
            record_ttl_s=MANIFEST_TTL_S,
            most_records=MAX_TUNING_RECORDS,
            most_reports=MAX_TUNING_REPORTS,
            measuring_ms=MEASURING_MS,
            wanted=wanted,
            reporter=reporter,
            times=struct.pack(f"<{len(times_ns)}Q", *times_ns),
        )
        may_measure, *packed = await self._scripts.run(lua.TUNING.call(parameters, lambda r: r))
        form = struct.Struct(f"<{subject.candidates}Q")
        reports = [form.unpack(times) for times in packed if len(times) == form.size]
        return _state(reports, may_measure=bool(may_measure))


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


def _state(reports: Sequence[Sequence[int]], *, may_measure: bool) -> TuningState:
    winner = fastest_candidate(reports)
    agreeing = (
        winner is not None and max(_relative(times)[winner] for times in reports) <= _AGREEMENT
    )
    is_settled = len(reports) >= (WANTED_REPORTS if agreeing else MAX_TUNING_REPORTS)
    return TuningState(winner, len(reports), is_settled, may_measure)


def _relative(times: Sequence[int]) -> list[float]:
    best = min((time for time in times if time), default=0)
    return [time / best if time else math.inf for time in times]
