"""Leaves the configurations of users' kernels out of a plan that the target's toolchain refuses.

An autotuned kernel has a compilation for each configuration, and some need more than a chip has.
The client chooses among the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.errors import KernelRejectedError
from kernelfarm.v1 import plan_pb2

_SHOWN_REASONS = 4


@dataclass(frozen=True, slots=True)
class KeptKernels:
    """A plan with the kernels that compile: their indices before, and notes on the others."""

    plan: plan_pb2.Plan
    kernels: tuple[int, ...]
    notes: tuple[str, ...]


def alternatives(plan: plan_pb2.Plan) -> tuple[int, ...]:
    """The indices of kernels that every step can do without, in order."""
    optional: set[int] = set()
    needed: set[int] = set()
    for step in plan.steps:
        choices = {choice.kernel for choice in step.extern_call.choices}
        (optional if len(choices) > 1 else needed).update(choices)
    return tuple(sorted(optional - needed))


def without_refused(plan: plan_pb2.Plan, refusals: Mapping[int, str]) -> KeptKernels:
    """The plan without refused kernels; `refusals` has the reasons by index.

    Raises:
        KernelRejectedError: no configuration of a kernel compiles; the message has the reasons.
    """
    kept = tuple(number for number in range(len(plan.kernels)) if number not in refusals)
    if len(kept) == len(plan.kernels):
        return KeptKernels(plan, kept, ())
    numbers = {before: after for after, before in enumerate(kept)}
    changed = plan_pb2.Plan()
    changed.CopyFrom(plan)
    del changed.kernels[:]
    changed.kernels.extend(plan.kernels[number] for number in kept)
    for step in changed.steps:
        if step.WhichOneof("form") == "extern_call":
            _renumber(step.extern_call, numbers, refusals)
        elif step.WhichOneof("form") == "launch":
            step.launch.kernel = numbers[step.launch.kernel]
    notes = (
        f"user kernel {plan.kernels[number].name} is left out of the choice: {refusals[number]}"
        for number in sorted(refusals)
    )
    return KeptKernels(changed, kept, tuple(notes))


def _renumber(
    step: plan_pb2.ExternStep, numbers: Mapping[int, int], refusals: Mapping[int, str]
) -> None:
    before = list(step.choices)
    del step.choices[:]
    for choice in before:
        if choice.kernel in numbers:
            step.choices.add(kernel=numbers[choice.kernel], configuration=choice.configuration)
    if before and not step.choices:
        raise _none_fits([refusals[choice.kernel] for choice in before])


def _none_fits(reasons: Sequence[str]) -> KernelRejectedError:
    distinct = list(dict.fromkeys(reasons))
    more = f"; and {len(distinct) - _SHOWN_REASONS} more" if len(distinct) > _SHOWN_REASONS else ""
    return KernelRejectedError(
        f"none of {len(reasons)} configurations compiles; expected one that does:"
        f" {'; '.join(distinct[:_SHOWN_REASONS])}{more}"
    )
