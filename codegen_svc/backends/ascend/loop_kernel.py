"""One variant of a loop kernel for Ascend: its tiling, its stages, and the facts of its launch.

A product of matrices is computed by cube cores, what follows it by vector cores, in one kernel. If
the toolchain refuses that, the kernel is compiled for vector cores alone, and a note says why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from codegen_svc.backends.ascend.adapter import lower_to_linalg
from codegen_svc.backends.ascend.cores import check_cores, cores_note
from codegen_svc.backends.ascend.hinted_tiling import hinted_cube_tiling, hinted_local_tiling
from codegen_svc.backends.ascend.kernel_object import (
    BINARY_STAGE,
    TILING,
    kernel_object,
    launched_arguments,
)
from codegen_svc.backends.ascend.library_calls import library_notes
from codegen_svc.backends.ascend.operand_marks import mark_operands
from codegen_svc.backends.ascend.scopes import lower_scopes, scope_loops, scopes_stage
from codegen_svc.backends.ascend.triton_ir import triton_ir
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import VariantPlan
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.cube_tiling import CubeUse, cube_contraction
from codegen_svc.emitters.triton.local_tiling import local_bytes
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling, program_count
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.hints import DOT_PAD_ONLY_K
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import print_kernel
from kernelfarm.targets import CubeFacts, LocalBufferFacts, TargetFacts

_NO_PRODUCT = "no product on cube cores"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A tiling with its bytes of a vector core's buffer; `use` is None without cube cores."""

    tiling: Tiling
    local_bytes: int
    use: CubeUse | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Linalg:
    """The Linalg text with scopes and without them, and what became of hints."""

    scoped: str
    text: str
    notes: tuple[str, ...] = ()


def build_loop_kernel(kernel: Kernel, target: TargetFacts, variant: VariantPlan) -> BuiltKernel:
    """The variant, for cube and vector cores if the kernel is a product that fits them.

    Raises:
        KernelRejectedError: nothing fits the chip, or Triton, the adapter or CANN's compiler
            refuses the kernel.
        UnavailableError: a required tool is missing.
    """
    product, hint_notes = hinted_cube_tiling(kernel, target, variant.index_bits)
    if product is None:
        is_product = cube_contraction(kernel, target) is not None
        unfit = (f"{_NO_PRODUCT}: no tile fits their buffers",) if is_product else ()
        return _built(kernel, target, variant, _vector_plan(kernel, target, variant, *unfit))
    notes = (cores_note(product.use, target), *hint_notes)
    plan = _Plan(product.tiling, product.use.unified_buffer_bytes, product.use, notes)
    try:
        return _built(kernel, target, variant, plan)
    except KernelRejectedError as error:
        note = f"{_NO_PRODUCT}: {error}"
        return _built(kernel, target, variant, _vector_plan(kernel, target, variant, note))


def _vector_plan(kernel: Kernel, target: TargetFacts, variant: VariantPlan, *notes: str) -> _Plan:
    chip = target.section(LocalBufferFacts)
    tiling, hint_notes = hinted_local_tiling(kernel, target, variant.index_bits)
    if tiling is None:
        raise KernelRejectedError(
            f"kernel {kernel.name} does not fit the {chip.size_bytes} bytes of"
            f" {target.name}'s unified buffer at any tiling"
        )
    return _Plan(tiling, local_bytes(kernel, tiling, chip), None, (*notes, *hint_notes))


def _built(kernel: Kernel, target: TargetFacts, variant: VariantPlan, plan: _Plan) -> BuiltKernel:
    with stage("triton"):
        source = emit_triton(kernel, plan.tiling, scalar_rules(target, kernel))
    ttir = triton_ir(source)
    with stage("linalg"):
        linalg = _linalg(kernel, plan, lower_to_linalg(kernel.name, ttir))
    cores = check_cores(kernel.name, linalg.text, plan.use)
    launch = _launch_facts(kernel, target, plan, cores)
    # A product's panels say themselves that there are two; its tiles are in the budget once.
    is_double_buffered = plan.use is None and plan.tiling.load_buffers > 1
    made = kernel_object(linalg.text, launch, target.arch, is_double_buffered=is_double_buffered)
    return BuiltKernel(
        binary_stage=BINARY_STAGE,
        stages=(
            StageText("kernel", print_kernel(kernel).encode(), True),
            StageText("triton", source.text.encode(), True),
            StageText("ttir", ttir.encode(), True),
            *scopes_stage(linalg.scoped),
            StageText("linalg", linalg.text.encode(), True),
            made.stage_text(),
        ),
        launch=launch,
        guard=variant.guard,
        is_stub=bool(made.stub_reason),
        stub_reason=made.stub_reason,
        notes=(*source.notes, *library_notes(linalg.text), *plan.notes, *linalg.notes),
    )


def _linalg(kernel: Kernel, plan: _Plan, adapted: str) -> _Linalg:
    """The adapter's text with the annotations that tiling and hints ask for."""
    copies = plan.tiling.load_buffers
    if plan.use is None:
        scoped = scope_loops(adapted, copies) if copies > 1 else adapted
        return _Linalg(scoped, lower_scopes(scoped))
    hint = next((hint for hint in kernel.hints if hint.name == DOT_PAD_ONLY_K), None)
    text, operands = mark_operands(adapted, copies, pads_only_k=hint is not None)
    if hint is None:
        return _Linalg(text, text)
    outcome = "applied" if operands else "ignored: something else than the product uses its blocks"
    return _Linalg(text, text, (f"hint {hint}: {outcome}",))


def _launch_facts(kernel: Kernel, target: TargetFacts, plan: _Plan, cores: str) -> LaunchFacts:
    tiling = plan.tiling
    buffers = ("buffer",) * len(kernel.params)
    sizes = ("size",) * len(kernel.sizes)
    return LaunchFacts(
        symbol=kernel.name,
        grid=(program_count(kernel, tiling),),
        xblock_elems=tiling.xblock,
        rblock_elems=tiling.rblock,
        local_bytes=plan.local_bytes,
        arguments=launched_arguments(*buffers, *sizes),
        extras=(
            ("index_bits", str(tiling.index_bits)),
            (TILING, _tiling_json(kernel, target, plan, cores)),
        ),
    )


def _tiling_json(kernel: Kernel, target: TargetFacts, plan: _Plan, cores: str) -> str:
    tiling, chip = plan.tiling, target.section(LocalBufferFacts)
    facts: dict[str, object] = {
        "cores": cores,
        "form": _form(kernel, plan),
        "load_buffers": tiling.load_buffers,
        "rblock": tiling.rblock,
        "unified_buffer_bytes": plan.local_bytes,
        "unified_buffer_limit_bytes": chip.size_bytes,
        "vector_cores": chip.vector_cores,
        "xblock": tiling.xblock,
    }
    if plan.use is None:
        facts["xblock_sub"] = tiling.xsub
    else:
        facts |= {"kblock": tiling.kblock, "cube": _cube_facts(plan.use, target)}
    return json.dumps(facts, sort_keys=True)


def _form(kernel: Kernel, plan: _Plan) -> str:
    if plan.use is not None:
        return "product"
    if plan.tiling.is_persistent:
        return "persistent"
    return "looped" if kernel.reduction else "pointwise"


def _cube_facts(use: CubeUse, target: TargetFacts) -> dict[str, int | None]:
    """What a product takes of the chip, and the limits of the cube cores and their buffers."""
    cube = target.section(CubeFacts)
    return {
        **use.facts(),
        "cube_cores_limit": cube.cores,
        "l0a_limit_bytes": cube.l0a_bytes,
        "l0b_limit_bytes": cube.l0b_bytes,
        "l0c_limit_bytes": cube.l0c_bytes,
        "l1_limit_bytes": cube.l1_bytes,
    }
