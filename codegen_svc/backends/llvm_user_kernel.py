"""Compiles users' Triton kernels for processors.

Triton's front end reads the source, as for a GPU, and simplifies it. What it gives names no
hardware: operations on blocks, which `codegen_svc.emitters.llvm.blocks` writes as LLVM IR.
"""

from __future__ import annotations

from typing import Final

from codegen_svc.backends import link_library, llvm_toolchain
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_hints import apply_hints
from codegen_svc.backends.triton_toolchain import CompileTarget, compile_triton
from codegen_svc.emitters.llvm.blocks.kernel import emit_blocks
from codegen_svc.emitters.llvm.blocks.parse import parse_program
from codegen_svc.emitters.triton.user_module import emit_user_module
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.triton.check_source import check_source
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer, UserKernel
from kernelfarm.targets import GpuFacts, TargetFacts, target_facts

# The front end asks for a GPU; its simplest form of each operation is that of this one.
_FRONT_END: Final = "cuda:sm_90a"
_OPTIONS: Final = {"enable_fp_fusion": True, "num_ctas": 1}


def build_llvm_user_kernel(
    kernel: UserKernel, target: TargetFacts, abi: str
) -> tuple[BuiltKernel, ...]:
    """One variant without a guard; the kernel's options and hints are for GPUs, and have no effect.

    Raises:
        UserKernelError: the kernel is outside of the language.
        KernelRejectedError: Triton refuses it, or an operation has no code for processors.
    """
    check_source(kernel.source)
    with stage("triton"):
        source = emit_user_module(kernel)
    gpu = target_facts(_FRONT_END).section(GpuFacts)
    chip = CompileTarget.of(gpu)
    front = compile_triton(source, chip, _OPTIONS, None, last_stage="ttir")
    code = llvm_toolchain.code_target(target)
    with stage("llir"):
        llir = emit_blocks(parse_program(str(front.stages["ttir"])), code)
    compiled = llvm_toolchain.compile_module(llir, code)
    with stage("so"):
        library = link_library.link_shared(compiled.object)
    stages = (
        _text("user_kernel", print_user_kernel(kernel)),
        _text("triton", source.text),
        *front.stage_texts(),
        _text("llir", llir),
        _text("llir_opt", compiled.llir_opt),
        _text("asm", compiled.asm),
        StageText("object", compiled.object, is_text=False),
        StageText("so", library, is_text=False),
    )
    words = ["buffer" if isinstance(p, Pointer) else "size" for p in kernel.launched]
    launch = LaunchFacts(
        symbol=kernel.name,
        arguments=(*words, *("size",) * GRID_SIZES, "threads"),
        extras=(("abi", abi), *llvm_toolchain.processor_extras(target)),
    )
    return (BuiltKernel("so", stages, launch, notes=_notes(kernel, target)),)


def _notes(kernel: UserKernel, target: TargetFacts) -> tuple[str, ...]:
    names = sorted({name for name, _ in kernel.options})
    options = tuple(f"option {name} does not exist for {target.vendor}" for name in names)
    return options + apply_hints(kernel, frozenset()).notes


def _text(name: str, content: str) -> StageText:
    return StageText(name, content.encode(), is_text=True)
