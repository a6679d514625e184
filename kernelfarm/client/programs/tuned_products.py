"""The fleet's choice, for each product of a graph, between kernels and the framework's library.

A search for the program asks the farm about all products first. If each has a winner, the program
is the one with these choices. If not, it is the program that nobody measured, and the process's
`ProductTuner` goes on: it measures what the farm asks this client for, asks again for what others
measure, and lets the graph's later calls run the program with the choices. Nothing here delays a
call, and an error leaves the program that runs.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.tuning_client import FarmTuning
from kernelfarm.client.loaders.contract import DeviceSupport
from kernelfarm.client.loaders.tuned_kernels import Advice
from kernelfarm.client.programs.product_measuring import Measuring
from kernelfarm.client.programs.product_subjects import (
    ProductSubject,
    all_choices,
    count_refused,
    looked_up,
    product_subjects,
    timer_of,
)
from kernelfarm.client.programs.product_tuner import TUNER, SubjectProgress
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.product_choice import NodeChoice

_log = logging.getLogger("kernelfarm.client")

FindProgram = Callable[[CompileOptions], PlanRunner]
Swap = Callable[[PlanRunner], bool]


@dataclass(frozen=True, slots=True)
class GraphToTune:
    """A captured graph, its device, and the options of its program without choices."""

    captured: CapturedGraph
    support: DeviceSupport
    options: CompileOptions


@dataclass(frozen=True, slots=True)
class _Subjects:
    """The subjects of a graph, how to measure them, and the fleet that knows their winners."""

    subjects: tuple[ProductSubject, ...]
    measuring: Measuring
    fleet: FarmTuning


class TunedProducts:
    """The choices for one graph.

    `find` gives the graph's program with the choices of its options. `swap` lets later calls run
    it, or returns false if it cannot do so now; it is a method of an object that the caller owns,
    which is referred to weakly.
    """

    def __init__(
        self, graph: GraphToTune, access: FarmAccess, find: FindProgram, swap: Swap
    ) -> None:
        self._graph = graph
        self._access = access
        self._find = find
        self._swap = weakref.WeakMethod(swap)
        self._known: _Subjects | None = None
        self._has_subjects = True
        self._used: tuple[NodeChoice, ...] | None = None
        self._missing: tuple[NodeChoice, ...] | None = None
        self._is_final = False
        self._advices: list[Advice | None] = []
        self._pending: tuple[SubjectProgress, ...] = ()

    def program(self) -> PlanRunner | None:
        """The program with the fleet's choices; None if some are unknown or it cannot be had."""
        known = self._subjects()
        if known is None:
            return None
        if self._is_final and self._used is not None:  # after an invalidation
            return self._with(self._used)
        self._advices = looked_up(known.fleet, known.subjects)
        winners = [None if advice is None else advice.winner for advice in self._advices]
        found = None
        if None not in winners:
            found = self._with(all_choices(known.subjects, winners))
        else:
            counters.count("tuning.products.auto")
        are_final = all(advice is not None and advice.is_final for advice in self._advices)
        self._is_final = found is not None and are_final
        return found

    def go_on(self) -> None:
        """Leaves what `program` did not know, or what may change, to the process's tuner."""
        known = self._known
        is_going_on = any(not progress.is_final for progress in self._pending)
        if known is None or self._is_final or is_going_on:
            return
        self._pending = tuple(
            TUNER.progress_of(subject, known.fleet, known.measuring, advice)
            for subject, advice in zip(known.subjects, self._advices, strict=True)
        )
        TUNER.add(self)

    def turn(self) -> bool:
        """Goes on with what is unknown, and swaps the program; false if nothing is left to do.

        For the tuner's thread.
        """
        swap, known = self._swap(), self._known
        if swap is None or known is None:
            return False
        for progress in self._pending:
            progress.turn(may_measure=self._access.settings.autotune != "first")
        is_decided = all(p.winner is not None or p.is_final for p in self._pending)
        is_final = all(p.is_final for p in self._pending)
        choices = all_choices(known.subjects, [p.winner for p in self._pending])
        # A first winner is used at once; it is replaced only when all are final.
        may_swap = is_decided and (self._used is None or is_final)
        if may_swap and choices and choices not in (self._used, self._missing):
            before = self._used
            found = self._with(choices)
            if found is not None and not swap(found):
                self._used = before
                return True
        self._is_final = is_final
        return not is_final

    def _subjects(self) -> _Subjects | None:
        """The subjects of the graph; None if it has none, or its device cannot be measured."""
        if self._known is None and self._has_subjects:
            self._known = self._made_subjects()
            self._has_subjects = self._known is not None
        return self._known

    def _made_subjects(self) -> _Subjects | None:
        graph, access = self._graph, self._access
        timer = timer_of(graph.support, graph.captured)
        if timer is None:
            count_refused("device")
            _log.info("kernelfarm: products are not tuned: %s has no timer", graph.captured.device)
            return None
        subjects = product_subjects(graph.captured, graph.support, graph.options, timer)
        if not subjects:
            return None
        measuring = Measuring(access, graph.support, timer, access.settings.autotune_limit_s)
        return _Subjects(
            subjects, measuring, FarmTuning(access.client, access.check_recent_failure)
        )

    def _with(self, choices: tuple[NodeChoice, ...]) -> PlanRunner | None:
        """The program with these choices; None if no tier has it."""
        try:
            found = self._find(replace(self._graph.options, node_choices=choices))
        except KernelfarmError as error:
            counters.count(f"tuning.products.failures.{error.reason.lower()}")
            _log.warning("kernelfarm: the program that the fleet chose is missing: %s", error)
            self._missing = choices
            return None
        counters.count("tuning.products.tuned")
        stated = ", ".join(f"{choice.node} {choice.choice.value}" for choice in choices)
        _log.info("kernelfarm: the fleet chose for products by node: %s", stated)
        self._used = choices
        return found
