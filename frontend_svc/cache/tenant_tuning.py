"""Tuning reports as one tenant sees them: its own, else those of the shared namespace.

Only warmers and imports fill the shared namespace. Reports of the two are never mixed, so a tenant
whose clients have measured a subject decides by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelfarm.cache.tuning_records import TuningRecords
from kernelfarm.tuning import TuningRecord, TuningState, TuningSubject


@dataclass(frozen=True, slots=True)
class TenantTuning:
    """The reports of one tenant; `shared` are those that warmers made for all tenants."""

    own: TuningRecords
    shared: TuningRecords | None = None

    async def find(
        self, subject: TuningSubject, reporter: str, *, can_measure: bool
    ) -> TuningState:
        """The state of a subject; lets the reporter measure if more reports are wanted.

        Raises:
            UnavailableError: the store does not answer.
        """
        if self.shared is not None:
            own = await self.own.find(subject, reporter, can_measure=False)
            if not own.reports:
                shared = await self.shared.find(subject, reporter, can_measure=False)
                if shared.is_settled:
                    return shared
        return await self.own.find(subject, reporter, can_measure=can_measure)

    async def add(
        self, subject: TuningSubject, reporter: str, times_ns: Sequence[int]
    ) -> TuningState:
        """Stores a report of the tenant, and returns the state with it.

        Raises:
            UnavailableError: the store does not answer.
        """
        return await self.own.add(subject, reporter, times_ns)

    async def read(self, subject: TuningSubject) -> TuningRecord | None:
        """The reports that decide for the tenant; None if there are none.

        Raises:
            UnavailableError: the store does not answer.
        """
        found = await self.own.read(subject)
        if found is None and self.shared is not None:
            shared = await self.shared.read(subject)
            return shared if shared is not None and shared.state.is_settled else None
        return found

    async def adopt(self, record: TuningRecord) -> int:
        """Adds reports of another farm to those of the tenant, and returns how many.

        Raises:
            UnavailableError: the store does not answer.
        """
        return await self.own.adopt(record)
