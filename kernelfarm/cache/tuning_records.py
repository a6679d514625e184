"""What clients measured: the reports on the candidates of a kernel, and the fastest candidate.

kf:...:tune:DIGEST  HASH  r:REPORTER -> times of one client; m:REPORTER -> until when it measures
kf:...:tune         ZSET  the records of the namespace by their last use
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.limits import MANIFEST_TTL_S, MAX_TUNING_RECORDS
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.tuning import (
    MAX_TUNING_REPORTS,
    WANTED_REPORTS,
    TuningRecord,
    TuningReport,
    TuningState,
    TuningSubject,
    tuning_state,
)

MEASURING_MS: Final = 60_000
"""How long a client that was asked to measure may take; then another one is asked."""

_REPORT: Final = b"r:"


class TuningRecords:
    """The reports of one namespace."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._scripts = AsyncScripts(client)
        self._redis_keys = redis_keys

    async def find(
        self, subject: TuningSubject, reporter: str, *, can_measure: bool
    ) -> TuningState:
        """The state of a subject; lets the reporter measure if more reports are wanted.

        Raises:
            UnavailableError: Redis does not serve.
        """
        state = (await self._run(subject, reporter, wanted=0)).state
        if not can_measure or state.is_settled:
            return state
        wanted = WANTED_REPORTS if state.reports < WANTED_REPORTS else MAX_TUNING_REPORTS
        return (await self._run(subject, reporter, wanted=wanted)).state

    async def add(
        self, subject: TuningSubject, reporter: str, times_ns: Sequence[int]
    ) -> TuningState:
        """Stores a report, and returns the state with it; 0 means that a time was not measured.

        Raises:
            UnavailableError: Redis does not serve.
        """
        return (await self._run(subject, reporter, times_ns=times_ns)).state

    async def read(self, subject: TuningSubject) -> TuningRecord | None:
        """All reports on a subject, None if there are none; is no use of the record.

        Raises:
            UnavailableError: Redis does not serve.
        """
        name = self._redis_keys.tuning(subject.record_digest)
        stored = await self._scripts.retried(lambda: self._client.hgetall(name))
        form = _form(subject)
        reports = tuple(
            TuningReport(bytes.fromhex(field.removeprefix(_REPORT).decode()), form.unpack(times))
            for field, times in sorted(stored.items())
            if field.startswith(_REPORT) and len(times) == form.size
        )
        return TuningRecord(subject, reports) if reports else None

    async def adopt(self, record: TuningRecord) -> int:
        """Adds reports of another farm, and returns how many; those that are there stay.

        Raises:
            UnavailableError: Redis does not serve.
        """
        added = 0
        for report in record.reports:
            done = await self._run(
                record.subject, report.reporter.hex(), times_ns=report.times_ns, replaces=False
            )
            added += done.is_stored
        return added

    async def _run(
        self,
        subject: TuningSubject,
        reporter: str,
        *,
        wanted: int = 0,
        times_ns: Sequence[int] = (),
        replaces: bool = True,
    ) -> _Done:
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
            replaces=int(replaces),
        )
        is_done, *packed = await self._scripts.run(lua.TUNING.call(parameters, lambda r: r))
        form = _form(subject)
        reports = [form.unpack(times) for times in packed if len(times) == form.size]
        may_measure = bool(is_done) and not times_ns
        return _Done(tuning_state(reports, may_measure=may_measure), bool(is_done and times_ns))


class _Done(NamedTuple):
    state: TuningState
    is_stored: bool


def _form(subject: TuningSubject) -> struct.Struct:
    """The stored form of a report's times."""
    return struct.Struct(f"<{subject.candidates}Q")
