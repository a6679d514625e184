"""A program that is bound to one captured graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.ir.program_ir import Plan

DEFAULT_TUNING_S = 30.0
"""How long the configurations of an autotuned kernel are measured, unless a setting says it."""


@dataclass(slots=True)
class Validity:
    """Whether later calls may use a program; an invalidated program never becomes valid again."""

    is_valid: bool = True


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A plan with loaded kernels, bound to one captured graph.

    `kernels` has the variants of each of the plan's kernels, in the plan's order. Autotuned
    kernels of users launch the fastest configuration, which is measured in at most `tuning_s`
    seconds; with 0, they launch the first one.
    """

    plan: Plan
    kernels: tuple[tuple[LoadedVariant, ...], ...]
    captured: CapturedGraph
    loader: Loader
    validity: Validity = field(default_factory=Validity, compare=False)
    tuning_s: float = DEFAULT_TUNING_S
