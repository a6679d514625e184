"""A program as a client holds it: plan, loaded kernels, and its own captured graph."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.ir.program_ir import Plan


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """What a call needs; `kernels` has the variants of each of the plan's kernels, in its order."""

    plan: Plan
    kernels: tuple[tuple[LoadedVariant, ...], ...]
    captured: CapturedGraph
    loader: Loader
