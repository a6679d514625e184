"""What clients measure on a device, and what the other clients of a farm know about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kernelfarm.tuning import TuningSubject


@dataclass(frozen=True, slots=True)
class Advice:
    """What the farm says: launch `winner`; or measure; or, with neither, ask again later.

    A winner that has a time after which to ask again may still change.
    """

    winner: int | None = None
    should_measure: bool = False
    retry_after_s: float = 0.0

    @property
    def is_final(self) -> bool:
        """True for a winner that enough reports agree on."""
        return self.winner is not None and not self.retry_after_s


MEASURE: Final = Advice(should_measure=True)
WAIT: Final = Advice()


class TuningFleet(Protocol):
    """The other clients of a farm."""

    def advice(self, tuned: TuningSubject, *, can_measure: bool) -> Advice:
        """What to do for a kernel; takes at most a second or two.

        Raises:
            KernelfarmError: the farm does not say.
        """

    def report(self, tuned: TuningSubject, times_ms: Sequence[float]) -> None:
        """Reports measured times, 0 for a candidate that was not measured.

        Raises:
            KernelfarmError: the farm does not take the report.
        """
