"""The CUDA backend: Triton source to cubin, with no GPU and no driver."""

from __future__ import annotations

import subprocess

from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.cuda.cubin_facts import read_cubin
from codegen_svc.backends.cuda.flash_attention import build_flash_attention
from codegen_svc.backends.cuda.flash_gradients import build_flash_gradients
from codegen_svc.backends.cuda.wheel_tools import nvidia_tool
from codegen_svc.backends.triton_called_math import rewriter_digest
from codegen_svc.backends.triton_gpu import GpuToolchain, ResourceUsage, build_gpu_kernel
from codegen_svc.backends.triton_toolchain import CompiledStages, backend_fingerprint, triton_status
from codegen_svc.backends.triton_user_kernel import (
    TemplateBuild,
    build_user_kernel,
    build_with_template,
)
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.hints import PIPELINE_HINTS
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import (
    FLASH_ATTENTION_TEMPLATE,
    FLASH_GRADIENTS_TEMPLATE,
    UserKernel,
)
from kernelfarm.targets import TargetFacts

# ptxas does the last step (one build for Hopper and older, one for newer chips). The others are for
# readers of artifacts.
_TOOLS = (("ptxas", True), ("ptxas-blackwell", True), ("cuobjdump", False), ("nvdisasm", False))

_OPTIONS = {
    # Explicit because Triton's default changes with its version: a*b+c may be rounded once.
    "enable_fp_fusion": True,
    "default_dot_input_precision": "ieee",
    "num_ctas": 1,
}

# Triton's defaults but for these: its default for the first one changes with its version.
_USER_HINTS = frozenset((*PIPELINE_HINTS, "passes"))
_USER_OPTIONS = {"enable_fp_fusion": True, "num_ctas": 1}
_TEMPLATES = {
    ("sm_90a", FLASH_ATTENTION_TEMPLATE): build_flash_attention,
    ("sm_90a", FLASH_GRADIENTS_TEMPLATE): build_flash_gradients,
}
_USER_OPTION_NAMES = frozenset({"maxnreg", "num_ctas", "num_stages", "num_warps"})


class CudaBackend:
    """NVIDIA's code generator."""

    vendor = "cuda"

    def tools(self) -> tuple[ToolStatus, ...]:
        """Triton and the tools of its wheel."""
        return (triton_status(), *(_tool_status(name, needed) for name, needed in _TOOLS))

    def needs(self) -> ToolNeeds:
        """It starts ptxas, which leaves no processes or files behind."""
        return ToolNeeds(takes_many_jobs=True)

    def fingerprint(self) -> str:
        """Digest over triton's wheel (its ptxas included) and our code."""
        return backend_fingerprint(__file__, rewriter_digest())

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """An aligned variant and a general one; if sizes vary, also one for multiples of 16."""
        return build_gpu_kernel(kernel, target, TOOLCHAIN)

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """A variant for aligned buffers, and the general one, with Triton's own defaults."""
        toolchain = GpuToolchain("cubin", False, _USER_OPTIONS, _usage)
        template = _TEMPLATES.get((target.arch, kernel.template))
        if template is not None:
            build = TemplateBuild(kernel, target, toolchain)
            return build_with_template(build, _USER_OPTION_NAMES, template)
        return build_user_kernel(kernel, target, toolchain, _USER_OPTION_NAMES, _USER_HINTS)

    def makes_runnable_binaries(self) -> bool:
        """True: cubins run on the chips that they name."""
        return True


def _usage(symbol: str, compiled: CompiledStages) -> ResourceUsage:
    binary = compiled.stages["cubin"]
    facts = read_cubin(binary if isinstance(binary, bytes) else binary.encode(), symbol)
    # Triton's shared memory is dynamic: the launch requests it, ptxas does not see it.
    shared = max(int(compiled.facts.get("shared") or 0), facts.static_shared_bytes)
    return ResourceUsage(facts.registers, facts.stack_bytes, shared)


TOOLCHAIN = GpuToolchain("cubin", False, _OPTIONS, _usage)
"""How kernels of the farm are compiled for NVIDIA GPUs."""


def _tool_status(name: str, is_required: bool) -> ToolStatus:
    path = nvidia_tool(name)
    remedy = "reinstall triton 3.9.0: its wheel carries this tool"
    if path is None:
        return ToolStatus(name, "", False, is_required, remedy)
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ToolStatus(name, "", False, is_required, remedy)
    last = [line for line in shown.stdout.splitlines() if "release" in line]
    return ToolStatus(name, last[0].strip() if last else "", True, is_required)


BACKEND: Backend = CudaBackend()
