"""Compiles users' Triton kernels for Ascend.

The kernel's blocks are the user's, so nothing is tiled here, and a kernel may need the cores for
matrix products, too. The text is the same for all addresses and sizes, so there is one variant.
"""

from __future__ import annotations

import json

from codegen_svc.backends.ascend.adapter import lower_to_linalg
from codegen_svc.backends.ascend.cores import cores_of
from codegen_svc.backends.ascend.kernel_object import (
    BINARY_STAGE,
    TILING,
    kernel_object,
    launched_arguments,
)
from codegen_svc.backends.ascend.triton_ir import triton_ir
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import DIVISIBLE
from codegen_svc.emitters.triton.user_module import emit_user_module
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.triton.check_source import check_source
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer, UserKernel
from kernelfarm.targets import TargetFacts


def build_user_kernel(kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
    """The only variant, which any launch may use.

    Raises:
        UserKernelError: the kernel is outside of the language.
        KernelRejectedError: Triton, the adapter or CANN's compiler refuses it.
        UnavailableError: a required tool is missing.
    """
    check_source(kernel.source)
    with stage("triton"):
        source = emit_user_module(kernel)
    ttir = triton_ir(source, {s.name: (DIVISIBLE,) for s in kernel.scalars if s.divisor > 1})
    with stage("linalg"):
        linalg = lower_to_linalg(kernel.name, ttir)
    launch = _launch_facts(kernel, cores_of(kernel.name, linalg))
    # As in Triton-Ascend: CANN's compiler decides what it fetches ahead.
    made = kernel_object(linalg, launch, target.arch, is_double_buffered=True)
    return (
        BuiltKernel(
            binary_stage=BINARY_STAGE,
            stages=(
                StageText("user_kernel", print_user_kernel(kernel).encode(), True),
                StageText("triton", source.text.encode(), True),
                StageText("ttir", ttir.encode(), True),
                StageText("linalg", linalg.encode(), True),
                made.stage(),
            ),
            launch=launch,
            is_stub=bool(made.stub_reason),
            stub_reason=made.stub_reason,
            notes=tuple(
                f"option {name} does not exist for {target.vendor}"
                for name in sorted(name for name, _ in kernel.options)
            ),
        ),
    )


def _launch_facts(kernel: UserKernel, cores: str) -> LaunchFacts:
    scalars = len(kernel.scalars)
    words = ("buffer" if isinstance(param, Pointer) else "size" for param in kernel.launched)
    return LaunchFacts(
        symbol=kernel.name,
        grid=tuple(symbol(f"s{scalars + axis}") for axis in range(GRID_SIZES)),
        arguments=launched_arguments(*words),
        extras=(("form", "user kernel"), (TILING, json.dumps({"cores": cores}))),
    )
