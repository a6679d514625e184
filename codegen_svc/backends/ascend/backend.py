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
from codegen_svc.backends.ascend.bishengir import TOOL, compile_linalg, find_bishengir
from codegen_svc.backends.ascend.cores import require_vector_cores
from codegen_svc.backends.ascend.elf_stub import write_elf
from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import VariantPlan, plan_index_variants
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.backends.triton_toolchain import (
    CompileTarget,
    backend_fingerprint,
    compile_triton,
    triton_status,
)
from codegen_svc.emitters.triton.index import numel
from codegen_svc.emitters.triton.local_tiling import local_bytes, local_tiling
from codegen_svc.emitters.triton.source import TritonSource, emit_triton
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import ceil_div
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.loop_ir import Kernel, Scan
from kernelfarm.ir.text import print_kernel
from kernelfarm.targets import LocalBufferFacts, TargetFacts

BINARY_STAGE = "kernel.o"
STUB_REASON = (
    f"no {TOOL} on this machine: the object carries the Linalg text, the tiling and the launch"
    " facts, and no code; it cannot run"
)
# Triton IR is the same for every chip, but Triton needs the name of a chip. The options are the
# strictest: IEEE precision, no fusion of multiplications with additions.
_FRONTEND = CompileTarget("cuda", 80, 32)
_OPTIONS = {"enable_fp_fusion": False, "default_dot_input_precision": "ieee", "num_warps": 4}
# Triton-Ascend's launcher passes these arguments before and after ours.
_LEADING = ("scratch", "scratch")
_TRAILING = ("grid_x", "grid_y", "grid_z", "program_x", "program_y", "program_z")


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
        limit = target.max_kernel_name_chars
        if limit is not None and len(kernel.name) > limit:
            raise KernelRejectedError(
                f"kernel name {kernel.name!r} has {len(kernel.name)} characters; {target.name}"
                f" takes at most {limit}"
            )
        return tuple(_build(kernel, target, variant) for variant in plan_index_variants(kernel))

    def makes_runnable_binaries(self) -> bool:
        """True where CANN's compiler is installed."""
        return find_bishengir() is not None


def _build(kernel: Kernel, target: TargetFacts, variant: VariantPlan) -> BuiltKernel:
    chip = target.section(LocalBufferFacts)
    tiling = local_tiling(kernel, target, variant.index_bits)
    if tiling is None:
        raise KernelRejectedError(
            f"kernel {kernel.name} does not fit the {chip.size_bytes} bytes of"
            f" {target.name}'s unified buffer at any tiling"
        )
    with stage("triton"):
        source = emit_triton(kernel, tiling, scalar_rules(target, kernel))
    ttir = str(compile_triton(source, _FRONTEND, _OPTIONS, {}, last_stage="ttir").stages["ttir"])
    with stage("linalg"):
        linalg = lower_to_linalg(kernel.name, ttir)
    launch = _launch_facts(kernel, chip, tiling, require_vector_cores(kernel.name, linalg))
    compiler = find_bishengir()
    with stage(BINARY_STAGE):
        if compiler is not None:
            binary = compile_linalg(
                compiler,
                kernel.name,
                linalg,
                target.arch,
                is_double_buffered=tiling.load_buffers > 1,
            )
        else:
            binary = _stub(linalg, launch)
    return BuiltKernel(
        binary_stage=BINARY_STAGE,
        stages=_stages(kernel, source, ttir, linalg, binary),
        launch=launch,
        guard=variant.guard,
        is_stub=compiler is None,
        stub_reason=STUB_REASON if compiler is None else "",
        notes=(*source.notes, *_library_notes(kernel)),
    )


def _library_notes(kernel: Kernel) -> tuple[str, ...]:
    ops = {s.op for s in kernel.body if isinstance(s, Scan)} & {"cumsum", "cumprod"}
    return tuple(
        f"calls triton_{op} of CANN's library, which was not run here" for op in sorted(ops)
    )


def _stages(
    kernel: Kernel, source: TritonSource, ttir: str, linalg: str, binary: bytes
) -> tuple[StageText, ...]:
    return (
        StageText("kernel", print_kernel(kernel).encode(), True),
        StageText("triton", source.text.encode(), True),
        StageText("ttir", ttir.encode(), True),
        StageText("linalg", linalg.encode(), True),
        StageText(BINARY_STAGE, binary, False),
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
        arguments=(*_LEADING, *buffers, *sizes, *_TRAILING),
        extras=(
            ("index_bits", str(tiling.index_bits)),
            ("tiling", _tiling_json(kernel, chip, tiling, cores)),
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


def _stub(linalg: str, launch: LaunchFacts) -> bytes:
    facts = {
        "arguments": list(launch.arguments),
        "grid": [str(extent) for extent in launch.grid],
        "local_bytes": launch.local_bytes,
        "symbol": launch.symbol,
    }
    return write_elf(
        launch.symbol,
        (
            (".kernelfarm.linalg", linalg.encode()),
            (".kernelfarm.tiling", dict(launch.extras)["tiling"].encode()),
            (".kernelfarm.launch", json.dumps(facts, sort_keys=True).encode()),
            (".kernelfarm.stub", STUB_REASON.encode()),
        ),
    )


BACKEND: Backend = AscendBackend()
