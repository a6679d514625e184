"""The one thread of a process that tunes products: it asks the farm, measures and reports."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final, Protocol

from kernelfarm.client import counters
from kernelfarm.client.loaders.tuned_kernels import Advice, TuningFleet
from kernelfarm.client.process.exit import pause, run_in_background
from kernelfarm.client.programs.product_measuring import Measuring
from kernelfarm.client.programs.product_subjects import ProductSubject
from kernelfarm.client.runtime.fleet_choice import FleetChoice
from kernelfarm.errors import KernelfarmError

_log = logging.getLogger("kernelfarm.client")

_TURN_S: Final = 0.25
"""The pause between two turns; a `FleetChoice` asks the farm less often."""
_WAIT: Final = Advice(retry_after_s=2.0)
"""What is done without an answer of the farm: a client measures products only if it is asked to."""
MAX_SUBJECTS: Final = 1024
"""Subjects of a process that are in progress or done; the oldest are dropped first."""


class SubjectProgress:
    """What is known of one subject: `winner`, and whether it `is_final`.

    `times_ms` are the times that this process measured, by candidate; none if it measured nothing.
    `count` is the number of products in the first graph that has the subject. A subject that ends
    without a winner leaves its products to the program that nobody measured.
    """

    def __init__(self, subject: ProductSubject, fleet: TuningFleet, measuring: Measuring) -> None:
        self.name, self.count = subject.name, len(subject.fragment.nodes)
        self.winner: int | None = None
        self.times_ms: tuple[float, ...] = ()
        self._fleet = fleet
        # Refers to the graph, so it is dropped in the end.
        self._to_measure: tuple[Measuring, ProductSubject] | None = (measuring, subject)
        self._tuned = subject.tuned
        self._has_measured = False
        self._choice = self._new_choice()

    @property
    def is_final(self) -> bool:
        """True if the winner, or that there is none, does not change in this process."""
        return self._to_measure is None

    def note(self, advice: Advice) -> None:
        """Takes what the farm said."""
        if advice.winner is not None:
            self.winner = advice.winner
        if advice.is_final:
            self._to_measure = None

    def turn(self, *, may_measure: bool) -> None:
        """Asks the farm, if it is time to, and measures if the farm asks for it."""
        if self._to_measure is None:
            return
        advice = self._choice.advice(can_measure=may_measure and not self._has_measured)
        self.note(advice)
        if advice.should_measure:
            self._measure(*self._to_measure)
        elif self._choice.has_ended:
            self._to_measure = None

    def _measure(self, measuring: Measuring, subject: ProductSubject) -> None:
        self._has_measured = True
        try:
            self.times_ms = measuring.times_ms(subject)
        except KernelfarmError as error:
            self._to_measure = None
            if not pause(0):  # at the end of the process, calls of the farm are ended
                counters.count(f"tuning.products.failures.{error.reason.lower()}")
                _log.warning("kernelfarm: %s was not measured: %s", self.name, error)
            return
        counters.count("tuning.products.measured")
        self._choice.report(self.times_ms)
        # Measuring may have taken as long as a choice asks the farm.
        self._choice = self._new_choice()

    def _new_choice(self) -> FleetChoice:
        return FleetChoice(self._fleet, self._tuned, self.name, alone=_WAIT)


class Tunable(Protocol):
    """A graph whose products are tuned."""

    def turn(self) -> bool:
        """Goes on; false if nothing is left to do."""


class ProductTuner:
    """Tunes the products of all graphs of the process; equal ones once, in one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: list[Tunable] = []
        self._progress: dict[tuple[bytes, str, str, str], SubjectProgress] = {}
        self._is_working = False

    def progress_of(
        self,
        subject: ProductSubject,
        fleet: TuningFleet,
        measuring: Measuring,
        advice: Advice | None,
    ) -> SubjectProgress:
        """The progress of a subject, which equal ones share; `advice` is what the farm has said."""
        settings = measuring.access.settings
        tuned = subject.tuned
        key = (tuned.digest, tuned.device, settings.endpoint, settings.namespace)
        with self._lock:
            found = self._progress.pop(key, None)
            if found is None:
                found = SubjectProgress(subject, fleet, measuring)
            while len(self._progress) >= MAX_SUBJECTS:
                del self._progress[next(iter(self._progress))]
            self._progress[key] = found
        if advice is not None and not found.is_final:
            found.note(advice)
        return found

    def add(self, graph: Tunable) -> None:
        """Tunes a graph in the background from now on."""
        with self._lock:
            self._graphs.append(graph)
            starts, self._is_working = not self._is_working, True
        if starts:
            run_in_background(self._work, "kernelfarm-products")

    def works_on(self, graph: Tunable) -> bool:
        """True if a graph was added, and is not done."""
        with self._lock:
            return graph in self._graphs

    def all_progress(self) -> tuple[SubjectProgress, ...]:
        """What is known of the subjects of this process, in the order of their last use."""
        with self._lock:
            return tuple(self._progress.values())

    def clear(self) -> None:
        """Drops all graphs and winners, as in a new process: a forked child has no thread."""
        self._lock = threading.Lock()  # a thread of the parent may have held it at the fork
        self._graphs = []
        self._progress = {}
        self._is_working = False

    def _work(self) -> None:
        own = self._graphs
        while True:
            with self._lock:
                if self._graphs is not own:  # cleared: another thread works on new graphs
                    return
                if not own:
                    self._is_working = False
                    return
                graphs = [*own]
            for graph in graphs:
                if pause(0) or not self._turn(graph):
                    with self._lock:
                        own.remove(graph)
            if pause(_TURN_S):
                return

    def _turn(self, graph: Tunable) -> bool:
        try:
            return graph.turn()
        except Exception:  # the edge of a thread: no call may suffer
            counters.count("tuning.products.errors")
            _log.exception("kernelfarm: tuning the products of a graph ended with an error")
            return False


TUNER: Final = ProductTuner()
os.register_at_fork(after_in_child=TUNER.clear)
