"""The tuning subjects of a graph: its products, and the programs among which the fleet chooses.

The candidates of a subject are programs of the product's fragment, which differ in who computes the
product. The farm compiles them like all programs, once for the fleet. A subject's digest is over
the keys of its candidates, so over the fragment, the target and the options.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.product_fragments import ProductFragment, product_fragments
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.contract import DeviceSupport, LaunchTimer, TimesLaunches
from kernelfarm.client.loaders.cpu_timer import CpuTimer
from kernelfarm.client.loaders.tuned_kernels import Advice, TunedKernel, TuningFleet
from kernelfarm.digest import program_key, tuning_digest
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.product_choice import (
    MAX_NODE_CHOICES,
    PRODUCT_OPS,
    NodeChoice,
    ProductChoice,
)

_log = logging.getLogger("kernelfarm.client")

CANDIDATES: Final = (ProductChoice.LIBRARY, ProductChoice.OWN)
"""The candidates of each product, by their numbers in reports."""
_LOOKUPS_S: Final = 1.0
"""How long the look-ups of all subjects of a graph take together."""
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program of a fragment, by its options and its key."""

    options: CompileOptions
    key: bytes


@dataclass(frozen=True, slots=True)
class ProductSubject:
    """A product that is tuned, with the candidates for it."""

    fragment: ProductFragment
    candidates: tuple[Candidate, ...]
    tuned: TunedKernel

    @property
    def name(self) -> str:
        """What lines of the log call it."""
        graph = self.fragment.captured.graph
        product = next(node for node in graph.nodes if node.op in PRODUCT_OPS)
        extents = " x ".join(map(str, product.types[0].shape))
        return f"product: {extents} (node {self.fragment.nodes[0]})"

    def choices(self, winner: int) -> tuple[NodeChoice, ...]:
        """What a winner says about the products of the graph."""
        return tuple(NodeChoice(node, CANDIDATES[winner]) for node in self.fragment.nodes)


def timer_of(support: DeviceSupport, captured: CapturedGraph) -> LaunchTimer | None:
    """The timer of a graph's device; None if its loader has none."""
    if isinstance(support.loader, TimesLaunches):
        return support.loader.timer()
    return CpuTimer() if captured.device.type == "cpu" else None


def product_subjects(
    captured: CapturedGraph, support: DeviceSupport, options: CompileOptions, timer: LaunchTimer
) -> tuple[ProductSubject, ...]:
    """The subjects of a graph; counts the products that are not tuned, by reasons."""
    found = product_fragments(captured)
    for reason in found.refused:
        count_refused(reason)
    if found.refused:
        reasons = ", ".join(dict.fromkeys(found.refused))
        _log.info("kernelfarm: %d products are not tuned: %s", len(found.refused), reasons)
    device = timer.device()
    return tuple(_subject(cut, support.target, options, device) for cut in found.fragments)


def count_refused(reason: str) -> None:
    """Counts a product that is not tuned, or a graph whose products are not."""
    counters.count(f"tuning.products.refused.{reason}")


def _subject(
    fragment: ProductFragment, target: str, options: CompileOptions, device: str
) -> ProductSubject:
    stated = [replace(options, products=choice, node_choices=()) for choice in CANDIDATES]
    graph = fragment.captured.graph
    candidates = tuple(Candidate(o, program_key(graph, target, o.pairs())) for o in stated)
    digest = tuning_digest([candidate.key for candidate in candidates], ())
    return ProductSubject(fragment, candidates, TunedKernel(digest, device, len(candidates)))


def looked_up(fleet: TuningFleet, subjects: Sequence[ProductSubject]) -> list[Advice | None]:
    """What the farm says about subjects, None where it does not answer; takes about a second."""
    pool = ThreadPoolExecutor(min(_THREADS, len(subjects)), "kernelfarm-tuning")
    asked = [pool.submit(fleet.advice, found.tuned, can_measure=False) for found in subjects]
    wait(asked, timeout=_LOOKUPS_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return [_answer(subject, future) for subject, future in zip(subjects, asked, strict=True)]


def _answer(subject: ProductSubject, asked: Future[Advice]) -> Advice | None:
    if not asked.done() or asked.cancelled():
        reason, text = "deadline_exceeded", f"no answer within {_LOOKUPS_S:g} s"
    else:
        error = asked.exception()
        if error is None:
            return asked.result()
        if not isinstance(error, KernelfarmError):
            raise error
        reason, text = error.reason.lower(), str(error)
    counters.count(f"tuning.fleet.failures.{reason}")
    _log.info("kernelfarm: %s: the fleet's choice is unknown: %s", subject.name, text)
    return None


def all_choices(
    subjects: Sequence[ProductSubject], winners: Sequence[int | None]
) -> tuple[NodeChoice, ...]:
    """The choices for a graph in ascending order of its nodes; none where there is no winner.

    A request may have `MAX_NODE_CHOICES`, so products behind these stay as nobody measured them.
    """
    found = (
        choice
        for subject, winner in zip(subjects, winners, strict=True)
        if winner is not None
        for choice in subject.choices(winner)
    )
    return tuple(sorted(found))[:MAX_NODE_CHOICES]
