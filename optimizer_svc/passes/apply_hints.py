"""Gives kernels the hints of the operations that they compute, as far as these fit.

A kernel of several operations has the hints of all of them. If two state different numbers, the
earlier operation's counts. What becomes of each hint is a note of the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.hints import KernelHint
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.hint_fit import hint_misfit
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.fused import Fusion
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.kernels.distinct_kernels import DistinctKernels

_NO_STEP = "no step computes it: it was removed, or equals another operation"

_Stated = Mapping[int, Sequence[KernelHint]]
"""Hints by the number of their captured node."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a hint in one step; without a problem, the step's kernel has it."""

    node: int
    hint: KernelHint
    problem: str


def apply_hints(
    chosen: Materialization, fusion: Fusion, built: BuiltSteps, target: TargetFacts
) -> BuiltSteps:
    """The steps, whose kernels have the hints that fit them."""
    graph = chosen.facts.graph
    if not graph.kernel_hints:
        return built
    stated: dict[int, list[KernelHint]] = {}
    for found in graph.kernel_hints:
        stated.setdefault(found.node, []).append(found.hint)
    distinct = DistinctKernels()
    steps: list[PlannedLaunch | Node] = []
    used: dict[tuple[int, str], None] = {}
    ignored: dict[str, None] = {}
    for position, (made_of, step) in enumerate(zip(fusion.steps, built.steps, strict=True)):
        outcomes = _outcomes(_captured_nodes(made_of), stated, step, built, target)
        steps.append(_launched(step, built, outcomes, distinct))
        for outcome in outcomes:
            text = _text(graph, outcome.node, outcome.hint)
            if outcome.problem:
                ignored[f"{text} is ignored: {outcome.problem}"] = None
            else:
                used[position, text] = None
    computed = {node for made_of in fusion.steps for node in _captured_nodes(made_of)}
    for node in sorted(stated.keys() - computed):
        for hint in stated[node]:
            ignored[f"{_text(graph, node, hint)} is ignored: {_NO_STEP}"] = None
    return replace(
        built,
        kernels=tuple(distinct.kernels),
        steps=tuple(steps),
        notes=(*built.notes, *ignored),
        used_hints=tuple(used),
    )


def _captured_nodes(made_of: Group | Node) -> list[int]:
    """The captured nodes that a step computes, in order."""
    if isinstance(made_of, Node):
        number = made_of.attr("node")
        return sorted({*made_of.origins, *((number,) if isinstance(number, int) else ())})
    # A `full` may be shared by many operators, and would have the hints of all.
    origins = (origin for member in made_of.members for origin in member.nest.origins)
    return sorted({node for op, node in origins if op != "full"})


def _outcomes(
    nodes: Sequence[int],
    stated: _Stated,
    step: PlannedLaunch | Node,
    built: BuiltSteps,
    target: TargetFacts,
) -> list[_Outcome]:
    found: list[_Outcome] = []
    given: dict[str, KernelHint] = {}
    for node in nodes:
        for hint in stated.get(node, ()):
            spend()
            problem = _problem(hint, step, built, target) or _conflict(hint, given)
            if not problem:
                given[hint.name] = hint
            found.append(_Outcome(node, hint, problem))
    return found


def _problem(
    hint: KernelHint, step: PlannedLaunch | Node, built: BuiltSteps, target: TargetFacts
) -> str:
    if isinstance(step, PlannedLaunch):
        return hint_misfit(hint, built.kernels[step.kernel], target)
    if step.attr("op") == USER_KERNEL_OP:
        return "it is a kernel of the user, whose source can state hints"
    return "the framework computes it"


def _conflict(hint: KernelHint, given: Mapping[str, KernelHint]) -> str:
    other = given.get(hint.name, hint)
    return "" if other == hint else f"an earlier operation of the kernel states {other}"


def _launched(
    step: PlannedLaunch | Node,
    built: BuiltSteps,
    outcomes: Sequence[_Outcome],
    distinct: DistinctKernels,
) -> PlannedLaunch | Node:
    """The step with a kernel that has its hints."""
    if isinstance(step, Node):
        return step
    used = {outcome.hint for outcome in outcomes if not outcome.problem}
    hints = tuple(sorted(used, key=lambda hint: hint.name))
    kernel = replace(built.kernels[step.kernel], hints=hints)
    return replace(step, kernel=distinct.number(kernel))


def _text(graph: Graph, node: int, hint: KernelHint) -> str:
    known = node < len(graph.origin_ops)
    op = graph.origin_ops[node].removesuffix(".default") if known else "operation"
    return f"hint {hint} of {op} ({node})"
