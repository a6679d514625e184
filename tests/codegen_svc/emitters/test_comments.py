"""The text of a comment never becomes code and never hides code."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from codegen_svc.backends import llvm_toolchain
from codegen_svc.backends.cpu.backend import BACKEND
from codegen_svc.backends.defined_symbols import check_defines
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.llvm.kernel import emit_llvm
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import gpu_tiling
from codegen_svc.worker.build_kernel import build_kernel
from kernelfarm.errors import InternalError, KernelRejectedError, VerificationError
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.verify import verify_kernel
from kernelfarm.targets import target_facts
from kernelfarm.wire import kernel_from_proto
from tests.support.fresh_kernels import fresh_kernel

CPU, GPU = "cpu:x86-64-v3", "cuda:sm_90a"

# What ends a text, a line or a comment: in C, in Python and its tokenizer, in Unicode.
ENDS = [
    *("\0", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1a", "\x85"),
    *("\u2028", "\u2029", "\ufeff", "\u202e", "*/", '"""', "'''", "\\", "\\\n", "#", ";", "}"),
]
CODE = "import os; os.abort()"


def kernel_with(comment: str) -> Kernel:
    return replace(kernel_from_proto(fresh_kernel("commented")), comments=(comment,))


def triton_text(kernel: Kernel) -> str:
    target = target_facts(GPU)
    tiling = gpu_tiling(kernel, target, 32, 0, None)
    assert tiling is not None
    return emit_triton(kernel, tiling, scalar_rules(target, kernel)).text


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_the_library_defines_its_function_whatever_a_comment_holds(end: str) -> None:
    kernel = kernel_with(f"relu {end}{CODE}{end} of the input")
    target = target_facts(CPU)
    result = build_kernel(BACKEND, kernel, target, bytes(32), lambda: 0.0)
    plain = build_kernel(BACKEND, replace(kernel, comments=()), target, bytes(32), lambda: 0.0)
    for made, expected in zip(result.variants, plain.variants, strict=True):
        # The stages differ by the comment; what is loaded does not.
        assert set(made.blobs) & set(expected.blobs)
        assert made.tags == expected.tags


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_triton_reads_the_same_program_whatever_a_comment_holds(end: str) -> None:
    kernel = kernel_with(f"relu {end}{CODE}{end}    {CODE}")
    text = triton_text(kernel)
    assert ast.dump(ast.parse(text)) == ast.dump(
        ast.parse(triton_text(replace(kernel, comments=())))
    )
    # `linecache` and the parser agree on what a line is.
    assert len(text.splitlines()) == text.count("\n")


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_llvm_text_has_no_character_that_ends_it_early(end: str) -> None:
    target = llvm_toolchain.code_target(target_facts(CPU))
    text = emit_llvm(kernel_with(f"relu {end}{CODE}"), target)
    assert all(c == "\n" or c.isprintable() for c in text)


def test_llvm_text_with_a_nul_is_refused_before_it_is_parsed() -> None:
    target = llvm_toolchain.code_target(target_facts(CPU))
    with pytest.raises(InternalError, match="NUL"):
        llvm_toolchain.compile_module(
            "; a comment\0\n" + emit_llvm(kernel_with(""), target), target
        )


@pytest.mark.parametrize("end", [e for e in ENDS if e not in {"#"}] + [" ", "-", "é"], ids=ascii)
def test_names_that_are_no_identifiers_never_reach_a_toolchain(end: str) -> None:
    kernel = replace(kernel_with(""), name=f"f{end}g")
    with pytest.raises(VerificationError, match="expected an identifier"):
        verify_kernel(kernel)
    with pytest.raises(KernelRejectedError):
        triton_text(kernel)


@pytest.mark.parametrize("name", ["malloc", "GOMP_parallel", "fmodf"])
def test_a_kernel_may_not_have_the_name_of_a_function_that_it_calls(name: str) -> None:
    target = llvm_toolchain.code_target(target_facts(CPU))
    with pytest.raises(KernelRejectedError, match="is a library function"):
        emit_llvm(replace(kernel_with(""), name=name), target)


def test_a_binary_without_its_function_or_with_others_is_not_signed() -> None:
    kernel = kernel_with("")
    (built,) = BACKEND.build(kernel, target_facts(CPU))
    library = {stage.name: stage.content for stage in built.stages}["so"]
    check_defines(library, kernel.name)
    with pytest.raises(InternalError, match="does not define"):
        check_defines(library, "another")
    with pytest.raises(InternalError, match="does not define"):
        check_defines(library, kernel.name + ".range")
    renamed = library.replace(b"\0commented\0", b"\0commenteX\0")
    with pytest.raises(InternalError, match="does not define"):
        check_defines(renamed, kernel.name)
    for length in range(0, len(library) - 1, 97):
        with pytest.raises(InternalError):
            check_defines(library[:length], kernel.name)
