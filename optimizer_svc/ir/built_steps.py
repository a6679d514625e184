"""Kernels, and the steps of a program that launch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Kernel


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch of a kernel by its number: the values of its parameters, and its sizes."""

    kernel: int
    values: tuple[int, ...]
    sizes: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class BuiltSteps:
    """Distinct kernels, and the program's steps in order: launches and extern nodes.

    `notes` are decisions about kernels for the report, one fact a line. `shared` maps values that
    are stored in another value's memory to that value. `used_hints` has (position of a launch,
    text) for each hint that the launch's kernel has. If kernels are launched in blocks, `sources`
    has the position in the fusion for each step, and `blocks` the memory of which a number names a
    block, with its elements.
    """

    kernels: tuple[Kernel, ...]
    steps: tuple[PlannedLaunch | Node, ...]
    notes: tuple[str, ...] = ()
    shared: Mapping[int, int] = field(default_factory=dict)
    used_hints: tuple[tuple[int, str], ...] = ()
    sources: tuple[int, ...] = ()
    blocks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
