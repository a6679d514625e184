"""Turns groups into kernels in canonical form; equal kernels become one with several launches."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.work_budget import spend
from optimizer_svc.ir.group import Group
from optimizer_svc.kernels.assemble_kernel import assemble_kernel
from optimizer_svc.kernels.distinct_kernels import DistinctKernels
from optimizer_svc.kernels.name_kernel import with_own_sizes
from optimizer_svc.kernels.normalize_axes import normalize_axes
from optimizer_svc.passes.choose_materialized import Materialization
from optimizer_svc.passes.fuse_nests import Fusion

_STEPS_A_KERNEL = 400
"""What a kernel costs besides its statements: canonical form, digest, launch, texts."""


@dataclass(frozen=True, slots=True)
class KernelUse:
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
    steps: tuple[KernelUse | Node, ...]
    notes: tuple[str, ...] = ()


def build_kernels(chosen: Materialization, fusion: Fusion) -> BuiltSteps:
    """The kernels of a fused schedule."""
    symbols = {s.name: s for s in chosen.facts.graph.symbols}
    sizes, origin_ops = chosen.facts.bounds, chosen.facts.graph.origin_ops
    distinct = DistinctKernels()
    steps: list[KernelUse | Node] = []
    for step in fusion.steps:
        if not isinstance(step, Group):
            steps.append(step)
            continue
        spend(_STEPS_A_KERNEL + 8 * step.statements)
        draft = assemble_kernel(step, chosen.storages, fusion.stored, sizes, origin_ops)
        kernel, values = with_own_sizes(normalize_axes(draft.kernel, sizes), symbols)
        steps.append(KernelUse(distinct.number(kernel), draft.values, values))
    return BuiltSteps(tuple(distinct.kernels), tuple(steps))
