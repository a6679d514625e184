"""What processors have no code for is refused with its name, and the text is bounded."""

from __future__ import annotations

import pytest

from codegen_svc.emitters.llvm.blocks import parse
from codegen_svc.emitters.llvm.blocks.parse import parse_program
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.triton.user_kernel import UserKernel
from tests.support.processor_kernels import built_for_processor
from tests.support.tutorial_kernels import TUTORIALS


@pytest.fixture(autouse=True)
def _fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns unless it is set


_BEGIN = "module {\n  tt.func public @k(%x: !tt.ptr<f32>) attributes {noinline = false} {\n"
_END = "    tt.return\n  }\n}\n"


def _source(body: str) -> UserKernel:
    kernel = TUTORIALS["add"].kernel()
    text = f"def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):\n{body}\n"
    return UserKernel("kernel", text, "kernel", kernel.params)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "    if n > 3:\n        return\n    tl.store(out_ptr, 1.0)",
            "a user kernel that returns early",
        ),
        (
            "    x = tl.join(tl.arange(0, 4), tl.arange(0, 4))\n    tl.store(out_ptr, tl.max(x))",
            "operation tt.join has no code for processors",
        ),
        (
            "    a = tl.arange(0, 1024)\n    b = a[:, None] * a[None, :].to(tl.float32)\n"
            + "".join(f"    b{i} = b * {i}.5\n" for i in range(80))
            + "".join(f"    tl.store(out_ptr + a, tl.sum(b{i} * b{i}, 0))\n" for i in range(80)),
            "need more than 256 MiB for each thread",
        ),
    ],
)
def test_a_kernel_without_code_is_refused_with_the_reason(body: str, message: str) -> None:
    with pytest.raises(KernelRejectedError, match=message):
        built_for_processor(_source(body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    %0 = arith.addi %1, %1 : i32\n", "names %1 too early"),
        ("    what is this\n", "its form is not known"),
        ("    %0 = arith.constant dense<1> : tensor<2097152xi32>\n", "a block of 2097152 elements"),
        ("    scf.if %x {\n" * 40, "nested more than 32 deep"),
        ("    scf.for %i = nothing {\n", "its form is not known"),
        ("    %0:3 = arith.constant 1 : i32\n", "3 results: no types"),
    ],
)
def test_a_text_of_another_form_is_refused(body: str, message: str) -> None:
    with pytest.raises(KernelRejectedError, match=message):
        parse_program(_BEGIN + body + _END)


def test_the_size_of_a_text_is_bounded() -> None:
    many = "    tt.return\n" * (parse.MAX_OPERATIONS + 1)
    with pytest.raises(KernelRejectedError, match="more than 20000 operations"):
        parse_program(_BEGIN + many + _END)
    with pytest.raises(KernelRejectedError, match="characters of intermediate code"):
        parse_program(" " * (parse.MAX_TEXT_CHARS + 1))
    with pytest.raises(KernelRejectedError, match="0 functions of a user kernel"):
        parse_program("module {\n}\n")
    with pytest.raises(KernelRejectedError, match="ends early"):
        parse_program(_BEGIN)
