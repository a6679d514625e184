"""The fleet's choices from the first tier that has them: this machine's disk, else the farm.

The disk has choices that an imported bundle brought. One that enough reports agree on is used
without a question to the farm, as a program on disk is; another one if the farm does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.checked_tuning import check_tuning, stated_tuning
from kernelfarm.client.farm.disk_lookup import EntryReader, find_on_disk
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.farm.tuning_client import FarmTuning
from kernelfarm.client.loaders.tuned_kernels import Advice
from kernelfarm.errors import IntegrityError, KernelfarmError, MalformedMessageError
from kernelfarm.tuning import TuningState, TuningSubject

_NOT_FINAL_S = 2.0


class TieredTuning:
    """The fleet of one farm, as far as this machine knows it; else over the farm's channel."""

    def __init__(self, access: FarmAccess) -> None:
        self._access = access
        self._farm = FarmTuning(access.client, access.check_recent_failure)

    def on_disk(self, tuned: TuningSubject) -> Advice | None:
        """What the disk says about a subject; None if it has no live record that names a winner."""
        state = self._state_on_disk(tuned)
        if state is None or state.winner is None:
            return None
        return Advice(state.winner, retry_after_s=0.0 if state.is_settled else _NOT_FINAL_S)

    def advice(self, tuned: TuningSubject, *, can_measure: bool) -> Advice:
        """What to do for a kernel; the farm decides about what is not final on disk.

        Raises:
            KernelfarmError: the disk does not say, and the farm neither.
        """
        known = self.on_disk(tuned)
        if known is not None and known.is_final:
            counters.count("tuning.disk.winners")
            return known
        try:
            return self._farm.advice(tuned, can_measure=can_measure)
        except KernelfarmError:
            if known is None:
                raise
            counters.count("tuning.disk.winners")
            return Advice(known.winner)

    def report(self, tuned: TuningSubject, times_ms: Sequence[float]) -> None:
        """Reports measured times to the farm.

        Raises:
            KernelfarmError: the farm does not take the report.
        """
        self._farm.report(tuned, times_ms)

    def _state_on_disk(self, tuned: TuningSubject) -> TuningState | None:
        access = self._access

        def load(entry: EntryReader, known: InvalidationState) -> TuningState:
            found = stated_tuning(entry.manifest, entry.content())
            check_tuning(found, access.settings.namespaces, access.client.verifier.check, tuned)
            return found.record.state

        refused_by = (IntegrityError, MalformedMessageError)
        return find_on_disk(access, tuned.record_digest, load, refused_by=refused_by).result
