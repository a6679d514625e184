"""The fleet's choice, for each product of a graph, between kernels and the framework's library.

A search for the program looks all products up first, on disk, then at the farm. If each has a
winner, the program is the one with these choices. If not, it is the program that nobody measured,
and the process's `ProductTuner` goes on: it measures what the farm asks this client for, asks again
for what others measure, and lets the graph's later calls run the program with the choices. Nothing
here delays a call, and an error leaves the program that runs.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.access import PAUSE_AFTER_FAILURE_S, FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.tuning_tiers import TieredTuning
from kernelfarm.client.loaders.contract import DeviceSupport, LaunchTimer
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
from kernelfarm.errors import DeadlineError, KernelfarmError, UnavailableError
from kernelfarm.ir.product_choice import NodeChoice

_log = logging.getLogger("kernelfarm.client")

_TRIES: Final = 30
"""How often a program that the farm does not send in time is requested again."""

FindProgram = Callable[[CompileOptions], PlanRunner]
Swap = Callable[[PlanRunner], bool]


@dataclass(frozen=True, slots=True)
class GraphToTune:
    """A captured graph, its device, and the options of its program without choices."""

    captured: CapturedGraph
    support: DeviceSupport
    options: CompileOptions


class TunedProducts:
    """The choices for one graph.

    `access` gives the process's access to the farm, which is another one after a fork. `find` gives
    the graph's program with the choices of its options. `swap` lets later calls run it, or returns
    false if it cannot do so now; it is a method of an object that the caller owns, which is
    referred to weakly.
    """

    def __init__(
        self,
        graph: GraphToTune,
        access: Callable[[], FarmAccess],
        find: FindProgram,
        swap: Swap,
    ) -> None:
        self._graph = graph
        self._access = access
        self._find = find
        self._swap = weakref.WeakMethod(swap)
        self._timer: LaunchTimer | None = None
        self._subjects: tuple[ProductSubject, ...] | None = None
        self._used: tuple[NodeChoice, ...] | None = None
        self._missing: tuple[NodeChoice, ...] | None = None
        self._tries_left = _TRIES
        self._try_again_s = 0.0
        self._is_final = False
        self._advices: list[Advice | None] = []
        self._pending: tuple[SubjectProgress, ...] = ()

    def program(self) -> PlanRunner | None:
        """The program with the fleet's choices; None if some are unknown or it cannot be had."""
        try:
            return self._program()
        except Exception:  # the call must get the other program, whatever is wrong here
            counters.count("tuning.products.errors")
            _log.exception("kernelfarm: the fleet's choices for a graph ended with an error")
            self._subjects = ()
            return None

    def go_on(self) -> None:
        """Leaves what `program` did not know, or what may change, to the process's tuner."""
        if not self._subjects or self._timer is None or self._is_final or TUNER.works_on(self):
            return
        access, timer = self._access(), self._timer
        limit_s = access.settings.autotune_limit_s
        measuring = Measuring(access, self._graph.support, timer, limit_s)
        self._pending = tuple(
            TUNER.progress_of(subject, TieredTuning(access), measuring, advice)
            for subject, advice in zip(self._subjects, self._advices, strict=True)
        )
        TUNER.add(self)

    def turn(self) -> bool:
        """Goes on with what is unknown, and swaps the program; false if nothing is left to do.

        For the tuner's thread.
        """
        swap, subjects = self._swap(), self._subjects
        if swap is None or not subjects:
            return False
        for progress in self._pending:
            progress.turn(may_measure=self._access().settings.autotune != "first")
        is_decided = all(p.winner is not None or p.is_final for p in self._pending)
        is_final = all(p.is_final for p in self._pending)
        choices = all_choices(_products(subjects), [p.winner for p in self._pending])
        # A first winner is used at once; it is replaced only when all are final.
        may_swap = is_decided and (self._used is None or is_final)
        is_new = choices not in ((), self._used, self._missing)
        if may_swap and is_new and not self._swapped(choices, swap):
            return True
        self._is_final = is_final
        return not is_final

    def _swapped(self, choices: tuple[NodeChoice, ...], swap: Swap) -> bool:
        """True if calls run the program with these choices now, or never will; false: later."""
        if time.monotonic() < self._try_again_s:
            return False
        before = self._used
        found = self._with(choices)
        if found is None:
            return choices == self._missing
        if not swap(found):
            self._used = before
            return False
        return True

    def _program(self) -> PlanRunner | None:
        if self._subjects is None:
            self._subjects = self._found_subjects()
        if not self._subjects:
            return None
        if self._is_final and self._used is not None:  # after an invalidation
            return self._with(self._used)
        self._advices = looked_up(TieredTuning(self._access()), self._subjects)
        winners = [None if advice is None else advice.winner for advice in self._advices]
        found = None
        if None not in winners:
            found = self._with(all_choices(_products(self._subjects), winners))
        else:
            counters.count("tuning.products.auto")
        are_final = all(advice is not None and advice.is_final for advice in self._advices)
        self._is_final = found is not None and are_final
        return found

    def _found_subjects(self) -> tuple[ProductSubject, ...]:
        """The subjects of the graph; none if its device cannot be measured."""
        graph = self._graph
        self._timer = timer_of(graph.support, graph.captured)
        if self._timer is None:
            count_refused("device")
            _log.info("kernelfarm: products are not tuned: %s has no timer", graph.captured.device)
            return ()
        return product_subjects(graph.captured, graph.support, graph.options, self._timer)

    def _with(self, choices: tuple[NodeChoice, ...]) -> PlanRunner | None:
        """The program with these choices; None if no tier has it."""
        try:
            found = self._find(replace(self._graph.options, node_choices=choices))
        except KernelfarmError as error:
            counters.count(f"tuning.products.failures.{error.reason.lower()}")
            _log.info("kernelfarm: the program that the fleet chose is missing: %s", error)
            self._note_missing(choices, error)
            return None
        counters.count("tuning.products.tuned")
        stated = ", ".join(f"{choice.node} {choice.choice.value}" for choice in choices)
        _log.info("kernelfarm: the fleet chose for products by node: %s", stated)
        self._used = choices
        return found

    def _note_missing(self, choices: tuple[NodeChoice, ...], error: KernelfarmError) -> None:
        """The farm goes on compiling after a deadline, and may come back; other errors stay."""
        if self._tries_left and isinstance(error, DeadlineError | UnavailableError):
            self._tries_left -= 1
            self._try_again_s = time.monotonic() + PAUSE_AFTER_FAILURE_S
        else:
            self._missing = choices


def _products(subjects: Sequence[ProductSubject]) -> list[tuple[int, ...]]:
    return [subject.fragment.nodes for subject in subjects]
