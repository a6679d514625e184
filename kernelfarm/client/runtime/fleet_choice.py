"""Shares the choice among a kernel's configurations with the other clients of a farm.

The first launch asks the farm. If clients have measured before, the farm names the fastest
configuration; if too few have, it asks this one to measure and to report. While others measure, the
first configuration is launched, and a thread asks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kernelfarm.client import counters
from kernelfarm.errors import KernelfarmError

_log = logging.getLogger("kernelfarm.client")

MOST_CANDIDATES: Final = 256
"""The farm compares no more of them."""
MOST_WAIT_S: Final = 60.0
"""After this time without a winner, a client measures without having been asked to."""


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """What is measured: `candidates` kernels, by the digest of all and of the sizes that matter.

    `device` names the device and its driver.
    """

    digest: bytes
    device: str
    candidates: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What the farm says: launch `winner`; or measure; or, with neither, ask again later."""

    winner: int | None = None
    should_measure: bool = False
    retry_after_s: float = 0.0


MEASURE: Final = Advice(should_measure=True)
WAIT: Final = Advice()


class TuningFleet(Protocol):
    """The other clients of a farm."""

    def advice(self, tuned: TunedKernel, *, can_measure: bool) -> Advice:
        """What to do for a kernel; takes at most a second or two.

        Raises:
            KernelfarmError: the farm does not say.
        """

    def report(self, tuned: TunedKernel, times_ms: Sequence[float]) -> None:
        """Reports measured times, 0 for a candidate that was not measured.

        Raises:
            KernelfarmError: the farm does not take the report.
        """


class FleetChoice:
    """The choice for one kernel; one thread at a time may ask."""

    def __init__(
        self,
        fleet: TuningFleet,
        tuned: TunedKernel,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._tuned = tuned
        self._name = name
        self._clock = clock
        self._answer: Advice | None = None
        self._ask_again_s = 0.0
        self._ends_s: float | None = None
        self._is_asking = False
        self._has_failed = False

    def advice(self, *, can_measure: bool) -> Advice:
        """A winner, `MEASURE` or `WAIT`. Only the first call waits for the farm."""
        now_s = self._clock()
        if self._ends_s is None:
            self._ends_s = now_s + MOST_WAIT_S
            self._ask(can_measure)
        elif now_s >= self._ends_s and self._answer is None:
            return MEASURE
        elif not self._is_asking and now_s >= self._ask_again_s:
            self._is_asking = True
            _in_background(lambda: self._ask(can_measure))
        answer, self._answer = self._answer, None
        return answer or WAIT

    def report(self, times_ms: Sequence[float]) -> None:
        """Reports measured times in the background, unless the farm did not answer before."""
        if not self._has_failed:
            _in_background(lambda: self._report(times_ms))

    def _ask(self, can_measure: bool) -> None:
        try:
            found = self._fleet.advice(self._tuned, can_measure=can_measure)
            if found.winner is not None:
                counters.count("tuning.fleet.winners")
        except KernelfarmError as error:
            self._fail(error)
            found = MEASURE
        self._ask_again_s = self._clock() + found.retry_after_s
        if found.winner is not None or found.should_measure:
            self._answer = found
        self._is_asking = False

    def _report(self, times_ms: Sequence[float]) -> None:
        try:
            self._fleet.report(self._tuned, times_ms)
            counters.count("tuning.fleet.reported")
        except KernelfarmError as error:
            self._fail(error)

    def _fail(self, error: KernelfarmError) -> None:
        self._has_failed = True
        counters.count(f"tuning.fleet.failures.{error.reason.lower()}")
        _log.info("kernelfarm: %s: the fleet's choice is unknown: %s", self._name, error)


def _in_background(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="kernelfarm-tuning", daemon=True).start()
