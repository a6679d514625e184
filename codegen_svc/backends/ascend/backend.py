"""The Ascend backend: Triton source to Triton IR, Linalg, and an object or a stub."""

from __future__ import annotations

import json

from codegen_svc.backends.ascend.adapter import (
    ADAPTER_VERSION,
    file_digest,
    find_adapter,
    lower_to_linalg,
    require_adapter,
)
from codegen_svc.backends.ascend.adapter import REMEDY as ADAPTER_REMEDY
from codegen_svc.backends.ascend.bishengir import REMEDY as BISHENGIR_REMEDY
from codegen_svc.backends.ascend.bishengir import TOOL, find_bishengir
from codegen_svc.backends.ascend.cores import require_vector_cores
from codegen_svc.backends.ascend.hinted_tiling import hinted_local_tiling
from codegen_svc.backends.ascend.kernel_object import (
    BINARY_STAGE,
    TILING,
    kernel_object,
    launched_arguments,
)
from codegen_svc.backends.ascend.library_calls import library_notes
from codegen_svc.backends.ascend.scopes import lower_scopes, scope_loops, scopes_stage
from codegen_svc.backends.ascend.triton_ir import triton_ir
from codegen_svc.backends.ascend.user_kernel import build_user_kernel
from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import VariantPlan, plan_index_variants
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.backends.triton_toolchain import backend_fingerprint, triton_status
from codegen_svc.emitters.triton.index import numel
from codegen_svc.emitters.triton.local_tiling import local_bytes
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import ceil_div
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import print_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import LocalBufferFacts, TargetFacts


class AscendBackend:
    """Huawei's code generator; on a machine without CANN it makes stubs."""

    vendor = "ascend"

    def tools(self) -> tuple[ToolStatus, ...]:
        """Triton, Triton-Ascend's adapter, and CANN's compiler, which may be absent."""
        adapter, compiler = find_adapter(), find_bishengir()
        version = ADAPTER_VERSION if adapter else ""
        remedy = "" if adapter else ADAPTER_REMEDY
        last = "" if compiler else BISHENGIR_REMEDY
        return (
            triton_status(),
            ToolStatus("triton-adapter-opt", version, adapter is not None, True, remedy),
            ToolStatus(TOOL, str(compiler or ""), compiler is not None, False, last),
        )

    def needs(self) -> ToolNeeds:
        """The adapter, and CANN's folder, where the compiler finds its other programs."""
        adapter, compiler = find_adapter(), find_bishengir()
        folders = [adapter.parent] if adapter else []
        if compiler:
            folders += [compiler.parent, *compiler.resolve().parents[:3]]
        return ToolNeeds(readable=tuple(folders))

    def fingerprint(self) -> str:
        """Digest over Triton's wheel, the adapter, our code, and the compiler of the last step."""
        compiler = find_bishengir()
        last = file_digest(compiler) if compiler else "stub"
        return backend_fingerprint(__file__, file_digest(require_adapter()), last)

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The general variant; if sizes vary, one with 32-bit positions before it."""
        _check_name(kernel.name, target)
        return tuple(_build(kernel, target, variant) for variant in plan_index_variants(kernel))

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The only variant; kernels of users may need cube cores, too."""
        _check_name(kernel.name, target)
        return build_user_kernel(kernel, target)

    def makes_runnable_binaries(self) -> bool:
        """True where CANN's compiler is installed."""
        return find_bishengir() is not None


def _check_name(name: str, target: TargetFacts) -> None:
    limit = target.max_kernel_name_chars
    if limit is not None and len(name) > limit:
        raise KernelRejectedError(
            f"kernel name {name!r} has {len(name)} characters; {target.name} takes at most {limit}"
        )


def _build(kernel: Kernel, target: TargetFacts, variant: VariantPlan) -> BuiltKernel:
    chip = target.section(LocalBufferFacts)
    tiling, hint_notes = hinted_local_tiling(kernel, target, variant.index_bits)
    if tiling is None:
        raise KernelRejectedError(
            f"kernel {kernel.name} does not fit the {chip.size_bytes} bytes of"
            f" {target.name}'s unified buffer at any tiling"
        )
    with stage("triton"):
        source = emit_triton(kernel, tiling, scalar_rules(target, kernel))
    ttir = triton_ir(source)
    with stage("linalg"):
        scoped = lower_to_linalg(kernel.name, ttir)
        if tiling.load_buffers > 1:
            scoped = scope_loops(scoped, tiling.load_buffers)
        linalg = lower_scopes(scoped)
    launch = _launch_facts(kernel, chip, tiling, require_vector_cores(kernel.name, linalg))
    is_double_buffered = tiling.load_buffers > 1
    made = kernel_object(linalg, launch, target.arch, is_double_buffered=is_double_buffered)
    return BuiltKernel(
        binary_stage=BINARY_STAGE,
        stages=(
            StageText("kernel", print_kernel(kernel).encode(), True),
            StageText("triton", source.text.encode(), True),
            StageText("ttir", ttir.encode(), True),
            *scopes_stage(scoped),
            StageText("linalg", linalg.encode(), True),
            made.stage_text(),
        ),
        launch=launch,
        guard=variant.guard,
        is_stub=bool(made.stub_reason),
        stub_reason=made.stub_reason,
        notes=(*source.notes, *library_notes(linalg), *hint_notes),
    )


def _launch_facts(
    kernel: Kernel, chip: LocalBufferFacts, tiling: Tiling, cores: str
) -> LaunchFacts:
    buffers = ("buffer",) * len(kernel.params)
    sizes = ("size",) * len(kernel.sizes)
    return LaunchFacts(
        symbol=kernel.name,
        grid=(ceil_div(numel(kernel.outer), tiling.xblock),),
        xblock_elems=tiling.xblock,
        rblock_elems=tiling.rblock,
        local_bytes=local_bytes(kernel, tiling, chip),
        arguments=launched_arguments(*buffers, *sizes),
        extras=(
            ("index_bits", str(tiling.index_bits)),
            (TILING, _tiling_json(kernel, chip, tiling, cores)),
        ),
    )


def _tiling_json(kernel: Kernel, chip: LocalBufferFacts, tiling: Tiling, cores: str) -> str:
    form = "persistent" if tiling.is_persistent else "looped" if kernel.reduction else "pointwise"
    facts = {
        "cores": cores,
        "form": form,
        "load_buffers": tiling.load_buffers,
        "rblock": tiling.rblock,
        "unified_buffer_bytes": local_bytes(kernel, tiling, chip),
        "unified_buffer_limit_bytes": chip.size_bytes,
        "vector_cores": chip.vector_cores,
        "xblock": tiling.xblock,
        "xblock_sub": tiling.xsub,
    }
    return json.dumps(facts, sort_keys=True)


BACKEND: Backend = AscendBackend()
