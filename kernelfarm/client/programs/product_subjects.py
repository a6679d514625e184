"""The tuning subjects of a graph: its products, and the programs among which the fleet chooses.

The candidates of a subject are programs of the product's fragment, which differ in who computes the
product. The farm compiles them like all programs, once for the fleet. A subject's digest is over
the keys of its candidates, so over the fragment, the target and the options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.product_fragments import ProductFragment, product_fragments
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.tuning_tiers import TieredTuning
from kernelfarm.client.loaders.contract import DeviceSupport, LaunchTimer, TimesLaunches
from kernelfarm.client.loaders.cpu_timer import CpuTimer
from kernelfarm.client.loaders.tuned_kernels import Advice
from kernelfarm.digest import program_key, tuning_digest
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import (
    MAX_NODE_CHOICES,
    PRODUCT_OPS,
    NodeChoice,
    ProductChoice,
)
from kernelfarm.tuning import TuningSubject

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
    tuned: TuningSubject

    @property
    def name(self) -> str:
        """What lines of the log call it."""
        graph = self.fragment.captured.graph
        product = next(node for node in graph.nodes if node.op in PRODUCT_OPS)
        extents = " x ".join(map(str, product.types[0].shape))
        return f"product: {extents} (node {self.fragment.nodes[0]})"


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
    candidates = candidates_of(fragment.captured.graph, target, options)
    return ProductSubject(fragment, candidates, subject_of(candidates, device))


def candidates_of(fragment: Graph, target: str, options: CompileOptions) -> tuple[Candidate, ...]:
    """The candidates of a product whose fragment is this graph."""
    stated = [replace(options, products=choice, node_choices=()) for choice in CANDIDATES]
    return tuple(Candidate(o, program_key(fragment, target, o.pairs())) for o in stated)


def subject_of(candidates: Sequence[Candidate], device: str) -> TuningSubject:
    """The subject of these candidates on a device."""
    digest = tuning_digest([candidate.key for candidate in candidates], ())
    return TuningSubject(digest, device, len(candidates))


def looked_up(fleet: TieredTuning, subjects: Sequence[ProductSubject]) -> list[Advice | None]:
    """What disk and farm say about subjects, None where neither does; takes about a second."""
    found: dict[int, Advice | None] = {}
    asked: dict[int, Future[Advice]] = {}
    pool = ThreadPoolExecutor(min(_THREADS, len(subjects)), "kernelfarm-tuning")
    for number, subject in enumerate(subjects):
        # Not in a thread: the first look-up on disk waits for missed invalidations.
        known = fleet.on_disk(subject.tuned)
        if known is not None and known.is_final:
            counters.count("tuning.disk.winners")
            found[number] = known
        else:
            asked[number] = pool.submit(fleet.advice, subject.tuned, can_measure=False)
    wait(asked.values(), timeout=_LOOKUPS_S)
    pool.shutdown(wait=False, cancel_futures=True)
    found |= {number: _answer(subjects[number], future) for number, future in asked.items()}
    return [found[number] for number in range(len(subjects))]


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
    products: Iterable[Sequence[int]], winners: Iterable[int | None]
) -> tuple[NodeChoice, ...]:
    """The choices for a graph in ascending order of its nodes; none where there is no winner.

    `products` has the nodes of each subject. A request may have `MAX_NODE_CHOICES`, so products
    behind these stay as nobody measured them.
    """
    found = (
        NodeChoice(node, CANDIDATES[winner])
        for nodes, winner in zip(products, winners, strict=True)
        if winner is not None
        for node in nodes
    )
    return tuple(sorted(found))[:MAX_NODE_CHOICES]
