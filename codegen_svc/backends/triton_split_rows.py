"""Variants of kernels whose rows are partly in shared memory: which there are, and their guards."""

from __future__ import annotations

from dataclasses import replace

from codegen_svc.backends.triton_assumptions import VariantPlan
from codegen_svc.emitters.triton.index import numel
from codegen_svc.emitters.triton.split_tiling import least_split_elems, split_tilings
from codegen_svc.emitters.triton.streamed_rows import streams_rows
from codegen_svc.emitters.triton.tiling import Tiling, static_numel
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts, TargetFacts


def split_forms(kernel: Kernel, target: TargetFacts, variant: VariantPlan) -> tuple[Tiling, ...]:
    """The tilings to try for a variant, the best one first; none for unaligned buffers."""
    width = static_numel(kernel.reduction) or variant.width_limit
    even_sizes = variant.even_sizes(kernel)
    if width is None or even_sizes is None or kernel.hints or streams_rows(kernel):
        return ()
    gpu = target.section(GpuFacts)
    return split_tilings(kernel, gpu, variant.index_bits, width, even_sizes)


def with_least_width(kernel: Kernel, variant: VariantPlan, tiling: Tiling) -> VariantPlan:
    """The variant, for rows of at least the length that its tiling needs.

    Rows of up to half of its longest ones are left to other variants: launchers prefer those with
    more conditions.
    """
    width = numel(kernel.reduction)
    if not tiling.shared_pieces or width.is_constant or variant.width_limit is None:
        return variant
    (name,) = width.symbols
    factor = width.coefficient_of(name)
    per_unit = factor.as_int() if factor is not None else 1
    least = max(variant.width_limit // 2 // per_unit + 1, -(-least_split_elems(tiling) // per_unit))
    atom = GuardAtom(GuardSubject.SYMBOL, name, GuardOp.GE, least)
    return replace(variant, guard=(*variant.guard, atom))
