"""Kernels, and the steps of a program that launch them."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Kernel


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One launch to be: a kernel by number, the values that its parameters are, its sizes."""

    kernel: int
    values: tuple[int, ...]
    sizes: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class BuiltSteps:
    """Distinct kernels, and the program's steps in order: launches and extern nodes.

    `notes` tell what was decided about kernels, one fact a line.
    """

    kernels: tuple[Kernel, ...]
    steps: tuple[PlannedLaunch | Node, ...]
    notes: tuple[str, ...] = ()
