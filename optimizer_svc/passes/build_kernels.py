"""Builds kernels in canonical form from groups; equal kernels are built once and launched often."""

from __future__ import annotations

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.fused import Fusion
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.kernels.assemble_kernel import assemble_kernel
from optimizer_svc.kernels.distinct_kernels import DistinctKernels
from optimizer_svc.kernels.name_kernel import with_own_sizes
from optimizer_svc.kernels.normalize_axes import normalize_axes

_STEPS_A_KERNEL = 400
"""Steps of the work budget for a kernel beside its statements: canonical form, digest, texts."""


def build_kernels(chosen: Materialization, fusion: Fusion, target: TargetFacts) -> BuiltSteps:
    """The kernels and steps of a fusion."""
    symbols = {s.name: s for s in chosen.facts.graph.symbols}
    sizes, origin_ops = chosen.facts.bounds, chosen.facts.graph.origin_ops
    distinct = DistinctKernels()
    steps: list[PlannedLaunch | Node] = []
    for step in fusion.steps:
        if not isinstance(step, Group):
            steps.append(step)
            continue
        spend(_STEPS_A_KERNEL + 8 * step.statements)
        draft = assemble_kernel(
            step, chosen.storages, fusion.stored, sizes, origin_ops, chosen.unrounded
        )
        kernel, values = with_own_sizes(normalize_axes(draft.kernel, sizes, target.memory), symbols)
        steps.append(PlannedLaunch(distinct.number(kernel), draft.values, values))
    return BuiltSteps(tuple(distinct.kernels), tuple(steps))
