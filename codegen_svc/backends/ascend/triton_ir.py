"""Triton source becomes Triton's IR, by the frontend of Triton's wheel."""

from __future__ import annotations

from codegen_svc.backends.triton_assumptions import Assumptions
from codegen_svc.backends.triton_toolchain import CompileTarget, compile_triton
from codegen_svc.emitters.triton.source import TritonSource

# Triton IR is the same for every chip, but Triton needs the name of a chip. The options are the
# strictest: IEEE precision, no fusion of multiplications with additions.
_FRONTEND = CompileTarget("cuda", 80, 32, shown="ascend")
_OPTIONS = {
    "enable_fp_fusion": False,
    "default_dot_input_precision": "ieee",
    "allowed_dot_input_precisions": ("ieee",),
    "num_warps": 4,
}


def triton_ir(source: TritonSource, assumptions: Assumptions | None = None) -> str:
    """The text of a kernel in Triton's IR.

    Raises:
        KernelRejectedError: Triton refuses the kernel.
        UnavailableError: triton is not installed.
    """
    compiled = compile_triton(source, _FRONTEND, _OPTIONS, assumptions, last_stage="ttir")
    return str(compiled.stages["ttir"])
