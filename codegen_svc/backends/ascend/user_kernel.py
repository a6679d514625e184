"""Compiles users' Triton kernels for Ascend.

The kernel's blocks are the user's, so nothing is tiled here, and a kernel may need the cores for
matrix products, too. The text is the same for all addresses and sizes, so there is one variant.
"""

from __future__ import annotations

import json
from dataclasses import replace

from codegen_svc.backends.ascend.adapter import lower_to_linalg
from codegen_svc.backends.ascend.cores import cores_of
from codegen_svc.backends.ascend.kernel_object import (
    BINARY_STAGE,
    TILING,
    kernel_object,
    launched_arguments,
)
from codegen_svc.backends.ascend.library_calls import library_notes
from codegen_svc.backends.ascend.load_hints import apply_load_hints
from codegen_svc.backends.ascend.marked_loads import (
    IMPORTS,
    UNMARKED,
    MarkedKernel,
    annotate_marks,
    mark_loads,
)
from codegen_svc.backends.ascend.scopes import lower_scopes, scopes_stage
from codegen_svc.backends.ascend.triton_ir import triton_ir
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import DIVISIBLE
from codegen_svc.emitters.triton.user_module import emit_user_module
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.triton.check_source import check_source
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer, UserKernel
from kernelfarm.targets import LocalBufferFacts, TargetFacts


def build_user_kernel(kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
    """The only variant, which any launch may use.

    If the kernel does not compile with its hints, it is compiled without them, and a note says so.

    Raises:
        UserKernelError: the kernel is outside of the language.
        KernelRejectedError: Triton, the adapter or CANN's compiler refuses it.
        UnavailableError: a required tool is missing.
    """
    check_source(kernel.source)
    marked = mark_loads(kernel, target.section(LocalBufferFacts))
    try:
        return (_built(kernel, target, marked),)
    except KernelRejectedError as error:
        if not marked.hints:
            raise
        built = _built(kernel, target, UNMARKED)
        note = f"the hints are ignored: with them, {error}"
        return (replace(built, notes=(*built.notes, note)),)


def _built(kernel: UserKernel, target: TargetFacts, marked: MarkedKernel) -> BuiltKernel:
    with stage("triton"):
        imports = IMPORTS if marked.definitions else ()
        source = emit_user_module(kernel, marked.definitions, imports=imports)
    ttir = triton_ir(source, {s.name: (DIVISIBLE,) for s in kernel.scalars if s.divisor > 1})
    with stage("linalg"):
        plain = lower_to_linalg(kernel.name, annotate_marks(ttir))
        hinted = apply_load_hints(plain, marked, target)
        linalg = lower_scopes(hinted.linalg)
    launch = _launch_facts(kernel, cores_of(kernel.name, linalg))
    # As in Triton-Ascend: CANN's compiler decides what it fetches ahead.
    made = kernel_object(linalg, launch, target.arch, is_double_buffered=True)
    return BuiltKernel(
        binary_stage=BINARY_STAGE,
        stages=(
            StageText("user_kernel", print_user_kernel(kernel).encode(), True),
            StageText("triton", source.text.encode(), True),
            StageText("ttir", ttir.encode(), True),
            *scopes_stage(hinted.linalg),
            StageText("linalg", linalg.encode(), True),
            made.stage_text(),
        ),
        launch=launch,
        is_stub=bool(made.stub_reason),
        stub_reason=made.stub_reason,
        notes=(*_option_notes(kernel, target), *hinted.notes, *library_notes(linalg)),
    )


def _option_notes(kernel: UserKernel, target: TargetFacts) -> tuple[str, ...]:
    names = sorted(name for name, _ in kernel.options)
    return tuple(f"option {name} does not exist for {target.vendor}" for name in names)


def _launch_facts(kernel: UserKernel, cores: str) -> LaunchFacts:
    scalars = len(kernel.scalars)
    words = ("buffer" if isinstance(param, Pointer) else "size" for param in kernel.launched)
    return LaunchFacts(
        symbol=kernel.name,
        grid=tuple(symbol(f"s{scalars + axis}") for axis in range(GRID_SIZES)),
        arguments=launched_arguments(*words),
        extras=(("form", "user kernel"), (TILING, json.dumps({"cores": cores}))),
    )
