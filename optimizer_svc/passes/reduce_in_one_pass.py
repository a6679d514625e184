"""Computes a row's maximum and exponentials, or its mean and squares, in one pass over the row.

Two passes are better if the second finds the row in registers or a near cache. The target's facts
state the length of a row up to which that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelfarm.ir.algebra.expr import product_of
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.loop_ir import GUIDES, Kernel
from kernelfarm.targets import TargetFacts
from kernelfarm.traffic import reads_columns
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.kernels.distinct_kernels import DistinctKernels
from optimizer_svc.kernels.guided_sums import GuidedSum, find_guided_sums, in_one_pass


@dataclass(frozen=True, slots=True)
class _Choice:
    """One pass or two, and why."""

    is_one_pass: bool
    reason: str


def reduce_in_one_pass(built: BuiltSteps, target: TargetFacts) -> BuiltSteps:
    """The steps with each kernel in the better form for the target, and a note for each choice."""
    found = {n: sums for n, k in enumerate(built.kernels) if (sums := find_guided_sums(k))}
    if not found:
        return built
    distinct = DistinctKernels()
    numbers: list[int] = []
    notes: dict[str, None] = {}
    for number, kernel in enumerate(built.kernels):
        sums = found.get(number, ())
        choices = [_choose(kernel, guided, target) for guided in sums]
        chosen = [s for s, choice in zip(sums, choices, strict=True) if choice.is_one_pass]
        numbers.append(distinct.number(in_one_pass(kernel, chosen) if chosen else kernel))
        name = distinct.kernels[numbers[-1]].name
        notes.update(dict.fromkeys(_notes(name, sums, choices)))
    steps = tuple(
        replace(step, kernel=numbers[step.kernel]) if isinstance(step, PlannedLaunch) else step
        for step in built.steps
    )
    return replace(
        built, kernels=tuple(distinct.kernels), steps=steps, notes=(*built.notes, *notes)
    )


def _notes(name: str, sums: Sequence[GuidedSum], choices: Sequence[_Choice]) -> list[str]:
    return [
        f"kernel {name}: {GUIDES[guided.op]} and {guided.op} in"
        f" {'one pass' if choice.is_one_pass else 'two passes'}: {choice.reason}"
        for guided, choice in zip(sums, choices, strict=True)
    ]


def _choose(kernel: Kernel, guided: GuidedSum, target: TargetFacts) -> _Choice:
    limits = target.two_passes(guided.op)
    is_across = reads_columns(kernel, target.memory)
    limit, word = (limits.columns, "columns") if is_across else (limits.rows, "rows")
    if limit is None:
        return _Choice(False, f"on {target.name} {word} of any length")
    points = _most_points(kernel)
    if points is None:
        return _Choice(limits.varying, f"{word} of varying length without a limit")
    sign = "more than" if points > limit else "at most"
    return _Choice(points > limit, f"{word} of {points} elements, {sign} {limit}")


def _most_points(kernel: Kernel) -> int | None:
    """The largest number of reduction points; None if there is no limit."""
    bounds = Bounds()
    for size in kernel.sizes:
        bounds = bounds.with_size(size.name, size.lower, size.upper)
    return bounds.interval(product_of([axis.extent for axis in kernel.reduction]))[1]
