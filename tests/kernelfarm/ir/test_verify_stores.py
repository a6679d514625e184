"""Values stored as slices: each element once, and all of them before the first reader."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, symbol
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    Launch,
    Plan,
    Program,
    SymbolSource,
    TensorView,
)
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_program

S0 = symbol("s0")


def rows_kernel(name: str, *stores: str) -> str:
    """A kernel over 4 rows of s0 elements that stores at the positions given, of rows of 3*s0."""
    lines = "\n".join(f"  store out0[{at}] = %0" for at in stores)
    return f"""kernel {name}
size s0 from 0
param in in0: f32[4*s0]
param out out0: f32[12*s0]
for d0 in 4
for d1 in s0
  %0: f32 = load in0[s0*d0 + d1]
{lines}
"""


FIRST, SECOND, THIRD = "3*s0*d0 + d1", "3*s0*d0 + d1 + s0", "3*s0*d0 + d1 + 2*s0"
INSIDE_OUT = "3*s0*d0 - d1 + 3*s0 - 1"  # the last third, from its end on


def program_of(kernels: Sequence[str], buffers: Sequence[tuple[str, str]] = ()) -> Program:
    """The program that launches each kernel once, from in0 to out0 if nothing else is stated."""
    parsed = tuple(parse_kernel(text) for text in kernels)
    names = buffers or [("in0", "out0")] * len(parsed)
    size: Expr = 12 * S0
    plan = Plan(
        target="cpu:x86-64-v4",
        symbols=(SymbolSource("s0", 0, 1),),
        buffers=(
            Buffer("in0", BufferKind.INPUT, DType.F32, 4 * S0),
            Buffer("out0", BufferKind.OUTPUT, DType.F32, size),
            Buffer("out1", BufferKind.OUTPUT, DType.F32, size, position=1),
        )[: 2 + any("out1" in pair for pair in names)],
        arena_bytes=ZERO,
        kernel_names=tuple(kernel.name for kernel in parsed),
        steps=tuple(Launch(k, pair, (S0,)) for k, pair in enumerate(names)),
        outputs=(TensorView("out0", DType.F32, (as_expr(4), 3 * S0), (3 * S0, ONE), ZERO),),
    )
    return Program(parsed, plan)


@pytest.mark.parametrize("last", [THIRD, INSIDE_OUT])
def test_thirds_of_rows_may_be_stored_by_one_kernel_or_by_three(last: str) -> None:
    verify_program(program_of([rows_kernel("all", FIRST, SECOND, last)]))
    parts = (FIRST, SECOND, last)
    verify_program(program_of([rows_kernel(f"part{k}", at) for k, at in enumerate(parts)]))


@pytest.mark.parametrize("last", [SECOND, "3*s0*d0 + d1 + s0 + 1", "3*s0*d0 + 2*d1 + s0"])
def test_slices_that_overlap_are_refused(last: str) -> None:
    with pytest.raises(VerificationError, match="may store the same elements of out0"):
        verify_program(program_of([rows_kernel("all", FIRST, SECOND, last)]))
    with pytest.raises(VerificationError, match="may store the same elements of out0"):
        verify_program(program_of([rows_kernel("a", FIRST, SECOND), rows_kernel("b", last)]))


def test_a_slice_stored_after_a_reader_is_refused() -> None:
    reader = """kernel reader
size s0 from 0
param in in0: f32[12*s0]
param out out0: f32[12*s0]
for d0 in 12*s0
  %0: f32 = load in0[d0]
  store out0[d0] = %0
"""
    parts = [rows_kernel("a", FIRST, SECOND), reader, rows_kernel("b", THIRD)]
    positions = [("in0", "out0"), ("out0", "out1"), ("in0", "out0")]
    with pytest.raises(
        VerificationError, match="expected all slices of a value before its readers"
    ):
        verify_program(program_of(parts, positions))
    verify_program(
        program_of([parts[0], parts[2], reader], [positions[0], positions[2], positions[1]])
    )


def blocks_program(*starts: tuple[int, int]) -> Program:
    """The program that stores blocks of 2 by 2 in a matrix of 4 by 4, from these positions on."""
    kernel = parse_kernel("""kernel block
size s0 from 0 to 2
size s1 from 0 to 2
param in in0: f32[4]
param out out0: f32[16]
for d0 in 2
for d1 in 2
  %0: f32 = load in0[2*d0 + d1]
  store out0[4*d0 + d1 + 4*s0 + s1] = %0
""")
    plan = Plan(
        target="cpu:x86-64-v4",
        symbols=(),
        buffers=(
            Buffer("in0", BufferKind.INPUT, DType.F32, as_expr(4)),
            Buffer("out0", BufferKind.OUTPUT, DType.F32, as_expr(16)),
        ),
        arena_bytes=ZERO,
        kernel_names=("block",),
        steps=tuple(Launch(0, ("in0", "out0"), tuple(map(as_expr, at))) for at in starts),
        outputs=(TensorView("out0", DType.F32, (as_expr(16),), (ONE,), ZERO),),
    )
    return Program((kernel,), plan)


def test_blocks_of_rows_and_columns_may_be_stored_in_any_order() -> None:
    verify_program(blocks_program((0, 0), (2, 2), (0, 2), (2, 0)))


@pytest.mark.parametrize("last", [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_blocks_that_share_rows_and_columns_are_refused(last: tuple[int, int]) -> None:
    with pytest.raises(VerificationError, match="may store the same elements of out0"):
        verify_program(blocks_program((0, 0), (2, 2), last))
