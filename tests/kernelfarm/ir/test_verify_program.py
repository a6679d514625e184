"""The verifier reports a violation of each rule of programs."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr, symbol
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    ExternCall,
    Launch,
    Plan,
    Program,
    SymbolSource,
    TensorView,
)
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_program

S0 = symbol("s0")
KERNEL = parse_kernel("""kernel fused_exp
size s0 from 1
param in in0: f32[16*s0]
param out out0: f32[16*s0]
for d0 in s0
for d1 in 16
  %0: f32 = load in0[16*d0 + d1]
  %1: f32 = exp %0
  store out0[16*d0 + d1] = %1
""")
VIEW = TensorView("tmp1", DType.F32, (S0, as_expr(16)), (as_expr(16), ONE), ZERO)
RESULT = replace(VIEW, buffer="ext0")
PLAN = Plan(
    target="cpu:x86-64-v4",
    symbols=(SymbolSource("s0", 0, 0),),
    buffers=(
        Buffer("in0", BufferKind.INPUT, DType.F32, 16 * S0),
        Buffer("const0", BufferKind.CONSTANT, DType.F32, 16 * S0),
        Buffer("tmp0", BufferKind.TEMPORARY, DType.F32, 16 * S0, offset_bytes=ZERO),
        Buffer("tmp1", BufferKind.TEMPORARY, DType.F32, 16 * S0, offset_bytes=64 * S0),
        Buffer("ext0", BufferKind.EXTERN, DType.F32, 16 * S0),
        Buffer("tmp2", BufferKind.TEMPORARY, DType.F32, 16 * S0, offset_bytes=ZERO),
        Buffer("out0", BufferKind.OUTPUT, DType.F32, 16 * S0),
    ),
    arena_bytes=128 * S0,
    kernel_names=("fused_exp",),
    steps=(
        Launch(0, ("in0", "tmp0"), (S0,)),
        Launch(0, ("tmp0", "tmp1"), (S0,)),
        ExternCall(3, "aten.mm.default", (VIEW,), (RESULT, None), True),
        Launch(0, ("ext0", "tmp2"), (S0,)),
        Launch(0, ("tmp2", "out0"), (S0,)),
    ),
    outputs=(replace(VIEW, buffer="out0"), S0, None),
)


def program(plan: Plan = PLAN) -> Program:
    return Program((KERNEL,), plan)


def with_step(index: int, step: Launch | ExternCall) -> Plan:
    steps = (*PLAN.steps[:index], step, *PLAN.steps[index + 1 :])
    return replace(PLAN, steps=steps)


def with_buffer(index: int, **changes: object) -> Plan:
    buffer = replace(PLAN.buffers[index], **changes)
    return replace(PLAN, buffers=(*PLAN.buffers[:index], buffer, *PLAN.buffers[index + 1 :]))


def test_a_well_formed_program_passes_with_memory_reused_between_lives() -> None:
    verify_program(program())


def test_temporaries_that_are_apart_may_lie_behind_the_others() -> None:
    verify_program(program(with_buffer(3, is_apart=True)))


BROKEN: list[tuple[Callable[[], Plan], str]] = [
    (lambda: replace(PLAN, kernel_names=("other",)), "plan names kernels"),
    (lambda: with_buffer(0, name="tmp0"), "expected distinct names"),
    (lambda: with_buffer(2, offset_bytes=None), "buffer tmp0: offset None; expected one"),
    (lambda: with_buffer(0, offset_bytes=ZERO), "buffer in0: offset 0; expected one"),
    (lambda: with_buffer(4, size_elems=symbol("q")), "buffer ext0: unknown symbol q"),
    (lambda: replace(PLAN, arena_bytes=symbol("q")), "arena: unknown symbol q"),
    (lambda: replace(PLAN, outputs=(symbol("q"),)), "output 0: unknown symbol q"),
    (lambda: with_step(0, Launch(1, ("in0", "tmp0"), (S0,))), "step 0: kernel 1; expected"),
    (lambda: with_step(0, Launch(0, ("in0",), (S0,))), "1 buffers and 1 sizes; expected 2 and 1"),
    (lambda: with_step(0, Launch(0, ("in0", "tmp0"))), "2 buffers and 0 sizes; expected 2 and 1"),
    (lambda: with_step(0, Launch(0, ("in0", "tmp9"), (S0,))), "'tmp9' is not among"),
    (lambda: with_step(0, Launch(0, ("tmp1", "tmp0"), (S0,))), "reads tmp1, which nothing"),
    (lambda: with_step(0, Launch(0, ("in0", "const0"), (S0,))), "writes const0, which is read"),
    (lambda: with_step(1, Launch(0, ("tmp0", "tmp0"), (S0,))), "tmp0 is written and passed twice"),
    (lambda: with_buffer(2, dtype=DType.U32), "tmp0 of u32; expected it among inputs, constants"),
    (lambda: with_buffer(6, dtype=DType.C64), "out0 of c64; expected it among inputs, constants"),
    (lambda: with_buffer(0, dtype=DType.I32), "in0 of i32 as in0; expected f32"),
    (lambda: replace(PLAN, steps=PLAN.steps[:-1]), "reads out0, which nothing has written"),
    (lambda: with_buffer(4, dtype=DType.F64), "ext0 of f64 seen as f32; expected equal widths"),
    (
        lambda: with_step(2, replace(PLAN.steps[2], results=(replace(RESULT, buffer="in0"), None))),
        "writes in0, which is read-only",
    ),
    (
        lambda: with_step(2, replace(PLAN.steps[2], args=(replace(VIEW, strides=(ONE,)),))),
        "1 strides for 2 axes of tmp1",
    ),
    (lambda: with_buffer(3, offset_bytes=ZERO), "tmp1 and tmp0 share bytes .* at step 1"),
    (lambda: with_buffer(3, offset_bytes=32 * S0), "expected a multiple of 64|share bytes"),
    (lambda: with_buffer(3, offset_bytes=128 * S0), "expected them within an arena"),
    (lambda: with_buffer(3, offset_bytes=64 * S0 + 4), "expected a multiple of 64"),
    (lambda: with_buffer(0, is_apart=True), "buffer in0: apart from the arena; expected it of"),
    (lambda: with_buffer(2, is_apart=True), "expected it before those that are apart"),
]


@pytest.mark.parametrize(("plan", "message"), BROKEN)
def test_a_broken_plan_is_refused(plan: Callable[[], Plan], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_program(program(plan()))


def test_a_broken_kernel_makes_the_program_broken() -> None:
    broken = replace(KERNEL, body=KERNEL.body[:-1])
    with pytest.raises(VerificationError, match="out0 is written, but no store"):
        verify_program(Program((broken,), PLAN))


def test_two_kernels_of_one_name_are_refused() -> None:
    plan = replace(PLAN, kernel_names=("fused_exp", "fused_exp"))
    with pytest.raises(VerificationError, match="expected distinct names"):
        verify_program(Program((KERNEL, KERNEL), plan))
