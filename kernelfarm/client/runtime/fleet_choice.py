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
from dataclasses import replace
from typing import Final

from kernelfarm.client import counters
from kernelfarm.client.loaders.tuned_kernels import (
    MEASURE,
    WAIT,
    Advice,
    TuningFleet,
)
from kernelfarm.errors import DeadlineError, KernelfarmError
from kernelfarm.tuning import TuningSubject

_log = logging.getLogger("kernelfarm.client")

MOST_CANDIDATES: Final = 256
"""The farm compares no more of them."""
_BUSY_RETRY_S: Final = 2.0
MOST_WAIT_S: Final = 60.0
"""After this time without a winner, a client measures without having been asked to."""


class FleetChoice:
    """The choice for one kernel; one thread at a time may ask.

    `alone` is what to do without an answer of the farm, and without a winner in the end.
    """

    def __init__(
        self,
        fleet: TuningFleet,
        tuned: TuningSubject,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        alone: Advice = MEASURE,
    ) -> None:
        self._fleet = fleet
        self._tuned = tuned
        self._name = name
        self._clock = clock
        self._alone = alone
        self._found = WAIT
        self._ask_again_s = 0.0
        self._ends_s: float | None = None
        self._is_asking = False
        self._has_failed = False

    def advice(self, *, can_measure: bool) -> Advice:
        """A winner, `MEASURE`, `WAIT`, or `alone`. Only the first call waits for the farm.

        A winner that is not final is followed by other answers, for at most `MOST_WAIT_S`.
        """
        now_s = self._clock()
        if self._ends_s is None:
            self._ends_s = now_s + MOST_WAIT_S
            self._ask(can_measure)
        elif now_s >= self._ends_s:
            winner = self._found.winner
            return self._alone if winner is None else Advice(winner)
        elif not self._is_asking and now_s >= self._ask_again_s:
            self._is_asking = True
            _in_background(lambda: self._ask(can_measure))
        found = self._found
        if found.should_measure:
            self._found = WAIT
        return found

    @property
    def has_ended(self) -> bool:
        """True if the farm is not asked again."""
        return self._ends_s is not None and self._clock() >= self._ends_s

    def report(self, times_ms: Sequence[float]) -> None:
        """Reports measured times in the background, unless the farm did not answer before."""
        if not self._has_failed:
            _in_background(lambda: self._report(times_ms))

    def _ask(self, can_measure: bool) -> None:
        try:
            found = self._fleet.advice(self._tuned, can_measure=can_measure)
            if found.is_final:
                counters.count("tuning.fleet.winners")
        except DeadlineError as error:  # the whole fleet may be starting
            self._note(error)
            found = replace(self._found, retry_after_s=_BUSY_RETRY_S)
        except KernelfarmError as error:
            self._note(error)
            self._has_failed = True
            # What this client knows already is good enough.
            found = self._alone if self._found.winner is None else Advice(self._found.winner)
        self._ask_again_s = self._clock() + found.retry_after_s
        self._found = found
        self._is_asking = False

    def _report(self, times_ms: Sequence[float]) -> None:
        try:
            self._fleet.report(self._tuned, times_ms)
            counters.count("tuning.fleet.reported")
        except KernelfarmError as error:
            self._note(error)

    def _note(self, error: KernelfarmError) -> None:
        counters.count(f"tuning.fleet.failures.{error.reason.lower()}")
        _log.info("kernelfarm: %s: the fleet's choice is unknown: %s", self._name, error)


def _in_background(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="kernelfarm-tuning", daemon=True).start()
