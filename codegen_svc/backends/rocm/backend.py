"""The ROCm backend: Triton source to hsaco, with no GPU and no driver."""

from __future__ import annotations

from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.rocm.hsaco_facts import HsacoFacts, read_hsaco
from codegen_svc.backends.triton_called_math import rewriter_digest
from codegen_svc.backends.triton_gpu import GpuToolchain, ResourceUsage, build_gpu_kernel
from codegen_svc.backends.triton_options import amd_options
from codegen_svc.backends.triton_toolchain import CompiledStages, backend_fingerprint, triton_status
from codegen_svc.backends.triton_user_kernel import build_user_kernel
from kernelfarm.errors import KernelRejectedError
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
# Launches state these two.
_NO_USER_HINTS = frozenset({"num_stages", "num_warps"})
# Triton's defaults but for these: its default for the first one changes with its version.
_USER_OPTIONS = {"enable_fp_fusion": True, "num_ctas": 1}
_USER_OPTION_NAMES = frozenset(
    {
        *("allow_flush_denorm", "kpack", "matrix_instr_nonkdim", "num_ctas", "num_stages"),
        *("num_warps", "waves_per_eu"),
    }
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
        return build_gpu_kernel(kernel, target, TOOLCHAIN)

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """A variant for aligned buffers, and the general one, with Triton's own defaults."""
        toolchain = GpuToolchain("hsaco", True, _USER_OPTIONS, _usage, _recorded)
        hints = frozenset(target.hints) - _NO_USER_HINTS
        return build_user_kernel(kernel, target, toolchain, _USER_OPTION_NAMES, hints)

    def makes_runnable_binaries(self) -> bool:
        """True: code objects run on the chips that they name."""
        return True


def _usage(symbol: str, compiled: CompiledStages) -> ResourceUsage:
    facts = _code_object(symbol, compiled)
    shared = max(int(compiled.facts.get("shared") or 0), facts.static_shared_bytes)
    spills = (facts.vector_spills + facts.scalar_spills) * _REGISTER_BYTES
    return ResourceUsage(facts.vector_registers, spills, shared)


def _code_object(symbol: str, compiled: CompiledStages) -> HsacoFacts:
    binary = compiled.stages["hsaco"]
    return read_hsaco(binary if isinstance(binary, bytes) else binary.encode(), symbol)


def _recorded(symbol: str, compiled: CompiledStages) -> tuple[tuple[str, str], ...]:
    """The options of the compilation, read from its results where these state them."""
    group_size = _code_object(symbol, compiled).max_group_size
    threads = compiled.facts["num_warps"] * compiled.facts["warp_size"]
    if group_size < threads:
        raise KernelRejectedError(
            f"kernel {symbol} is compiled for groups of {group_size} work items; a program has"
            f" {threads}"
        )
    return (("amd_options", amd_options(compiled.facts, group_size)),)


TOOLCHAIN = GpuToolchain("hsaco", True, _OPTIONS, _usage, _recorded)
"""How kernels of the farm are compiled for AMD GPUs."""

BACKEND: Backend = RocmBackend()
