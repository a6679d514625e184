"""A program that is bound to one captured graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.ir.program_ir import Plan

if TYPE_CHECKING:
    from kernelfarm.client.loaders.tuned_kernels import TuningFleet


@dataclass(frozen=True, slots=True)
class TuningPolicy:
    """How autotuned kernels of users choose a configuration.

    The first launch measures them in at most `limit_s` seconds, unless the other clients of the
    farm, which `fleet` makes, know the fastest one or measure it. With a limit of 0, the first
    configuration is launched.
    """

    limit_s: float = 30.0
    fleet: Callable[[], TuningFleet] | None = None


DEFAULT_TUNING = TuningPolicy()


@dataclass(slots=True)
class Validity:
    """Whether later calls may use a program; an invalidated program never becomes valid again."""

    is_valid: bool = True


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A plan with loaded kernels, bound to one captured graph.

    `kernels` has the variants of each of the plan's kernels, in the plan's order. If it
    `is_deterministic`, the framework runs its operators with its deterministic kernels.
    """

    plan: Plan
    kernels: tuple[tuple[LoadedVariant, ...], ...]
    captured: CapturedGraph
    loader: Loader
    validity: Validity = field(default_factory=Validity, compare=False)
    tuning: TuningPolicy = field(default=DEFAULT_TUNING, compare=False)
    is_deterministic: bool = False
