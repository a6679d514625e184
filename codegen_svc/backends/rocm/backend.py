"""The ROCm backend: Triton source to hsaco, with no GPU and no driver."""

from __future__ import annotations

from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.rocm.hsaco_facts import read_hsaco
from codegen_svc.backends.triton_called_math import rewriter_digest
from codegen_svc.backends.triton_gpu import GpuToolchain, ResourceUsage, build_gpu_kernel
from codegen_svc.backends.triton_toolchain import CompiledStages, backend_fingerprint, triton_status
from codegen_svc.backends.triton_user_kernel import build_user_kernel
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import TargetFacts

_OPTIONS = {
    # Explicit because Triton's default changes with its version: a*b+c may be rounded once.
    "enable_fp_fusion": True,
    "default_dot_input_precision": "ieee",
    "allow_flush_denorm": False,
    "num_ctas": 1,
    # 0: the compiler chooses the occupancy.
    "waves_per_eu": 0,
}
_REGISTER_BYTES = 4
# Triton's defaults but for these: its default for the first one changes with its version.
_USER_HINTS = frozenset({"waves_per_eu"})
_USER_OPTIONS = {"enable_fp_fusion": True, "num_ctas": 1}
_USER_OPTION_NAMES = frozenset(
    {"kpack", "matrix_instr_nonkdim", "num_ctas", "num_stages", "num_warps", "waves_per_eu"}
)


class RocmBackend:
    """AMD's code generator."""

    vendor = "rocm"

    def tools(self) -> tuple[ToolStatus, ...]:
        """Only Triton: its wheel contains AMD's code generator and linker."""
        return (triton_status(),)

    def needs(self) -> ToolNeeds:
        """Nothing: compiler and linker are libraries in the process."""
        return ToolNeeds(starts_programs=False, takes_many_jobs=True)

    def fingerprint(self) -> str:
        """Digest over triton's wheel and our code."""
        return backend_fingerprint(__file__, rewriter_digest())

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """An aligned variant and a general one; if sizes vary, also one for multiples of 16."""
        return build_gpu_kernel(kernel, target, GpuToolchain("hsaco", True, _OPTIONS, _usage))

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """A variant for aligned buffers, and the general one, with Triton's own defaults."""
        toolchain = GpuToolchain("hsaco", True, _USER_OPTIONS, _usage)
        return build_user_kernel(kernel, target, toolchain, _USER_OPTION_NAMES, _USER_HINTS)

    def makes_runnable_binaries(self) -> bool:
        """True: code objects run on the chips that they name."""
        return True


def _usage(symbol: str, compiled: CompiledStages) -> ResourceUsage:
    binary = compiled.stages["hsaco"]
    facts = read_hsaco(binary if isinstance(binary, bytes) else binary.encode(), symbol)
    shared = max(int(compiled.facts.get("shared") or 0), facts.static_shared_bytes)
    spills = (facts.vector_spills + facts.scalar_spills) * _REGISTER_BYTES
    return ResourceUsage(facts.vector_registers, spills, shared)


BACKEND: Backend = RocmBackend()
