"""What the fleet chose for a warmed graph on a device, and the program with these choices.

A job measures nothing: it asks the farm for the choices of clients that have the device, and warms
the program that such clients will look for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.tuning_client import FarmTuning
from kernelfarm.client.programs.product_subjects import all_choices, candidates_of, subject_of
from kernelfarm.client.runtime.configuration_keys import configuration_key, is_key_constant
from kernelfarm.client.warming.captures import CapturedProduct
from kernelfarm.client.warming.certificate import SubjectCoverage, TuningCoverage
from kernelfarm.client.warming.retry import Retry
from kernelfarm.digest import program_key, tuning_digest
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.tuning import MAX_CANDIDATES, TuningSubject
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto

_MAX_KERNELS: Final = 1024
"""Autotuned kernels of one program about which a job asks."""

FindProgram = Callable[[bytes, CompileOptions], CompiledProgram]
"""The program of a key at the farm, which compiles it if it is missing."""


@dataclass(frozen=True, slots=True)
class TunedGraph:
    """A captured graph with its products, none if the fleet does not choose for them."""

    graph: Graph
    products: Sequence[CapturedProduct]
    options: CompileOptions


@dataclass(slots=True)
class _Chosen:
    """What is known so far; `undecided` counts the subjects without a winner."""

    subjects: list[SubjectCoverage] = field(default_factory=list)
    undecided: int = 0

    def add(self, stated: SubjectCoverage) -> None:
        if stated.winner is None:
            self.undecided += 1
        else:
            self.subjects.append(stated)


@dataclass(frozen=True, slots=True)
class FleetChoices:
    """Asks for the fleet's choices; `find` gives the programs that they name."""

    client: FarmClient
    retry: Retry
    find: FindProgram

    def coverage(
        self, tuned: TunedGraph, program: CompiledProgram, device: str
    ) -> TuningCoverage | None:
        """What the fleet chose for a program on a device; None if it has nothing to choose."""
        chosen, key = _Chosen(), ""
        try:
            products = self._products(tuned, program.target, device)
            winners = [found.winner for found in products]
            if products and None not in winners:
                nodes = [found.nodes for found in tuned.products]
                choices = all_choices(nodes, winners)
                options = replace(tuned.options, node_choices=choices)
                found_key = program_key(tuned.graph, program.target, options.pairs())
                key = found_key.hex()
                program = self.find(found_key, options)
                chosen.subjects.extend(products)
            else:
                # Clients use the choices of all products, or of none.
                chosen.undecided = len(products)
            for subject in _kernel_subjects(tuned.graph, program, device):
                chosen.add(self._stated(*subject))
        except KernelfarmError as error:
            reason = f"{error.reason}: {error}"
            return TuningCoverage(device=device, state="missing", key=key, reason=reason)
        return _coverage(chosen, device, key)

    def _products(self, tuned: TunedGraph, target: str, device: str) -> list[SubjectCoverage]:
        found = []
        for product in tuned.products:
            fragment = graph_from_proto(graph_pb2.Graph.FromString(product.graph))
            subject = subject_of(candidates_of(fragment, target, tuned.options), device)
            found.append(self._stated(f"product of node {product.nodes[0]}", subject))
        return found

    def _stated(self, name: str, subject: TuningSubject) -> SubjectCoverage:
        fleet = FarmTuning(self.client)
        advice = self.retry(lambda: fleet.advice(subject, can_measure=False))
        return SubjectCoverage(
            name=name,
            digest=subject.digest.hex(),
            candidates=subject.candidates,
            winner=advice.winner,
        )


def _coverage(chosen: _Chosen, device: str, key: str) -> TuningCoverage | None:
    if not chosen.subjects and not chosen.undecided:
        return None
    reason = ""
    if chosen.undecided:
        count = chosen.undecided + len(chosen.subjects)
        reason = f"the fleet has not chosen all of {count} products and kernels yet"
    return TuningCoverage(
        device=device,
        state="present" if chosen.subjects else "none",
        key=key,
        reason=reason,
        subjects=tuple(chosen.subjects),
    )


def _kernel_subjects(
    graph: Graph, program: CompiledProgram, device: str
) -> Iterator[tuple[str, TuningSubject]]:
    """The autotuned kernels of a program, equal ones once, without those whose key varies."""
    seen: set[TuningSubject] = set()
    steps = (step for step in program.plan.steps if isinstance(step, ExternCall))
    for step in steps:
        numbers = [choice.configuration for choice in step.choices]
        if not 2 <= len(numbers) <= MAX_CANDIDATES or len(seen) >= _MAX_KERNELS:
            continue
        node = graph.nodes[step.node]
        if not is_key_constant(node):
            continue
        subject = TuningSubject(
            tuning_digest(*configuration_key(node, numbers, {})), device, len(numbers)
        )
        if subject not in seen:
            seen.add(subject)
            yield f"kernel of node {step.node}", subject
