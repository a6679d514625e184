"""Texts of tile programs that are refused: each with its line, and none is executed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.write_triton import write_triton
from kernelfarm.errors import TileProgramError
from tests.support.tile_programs import program_text

_BLOCK = "                T.fill(T.region(acc[0, 0], 2, 32, 32), 0)"


def _changed(old: str, new: str) -> str:
    text = program_text("matmul")
    assert old in text
    return text.replace(old, new)


def _with(statement: str) -> str:
    return _changed(_BLOCK, f"                {statement}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the text of one T.prim_func"),
        ("x = (", "the text is not Python's syntax"),
        ("x" * (129 << 10), "expected at most 131072"),
        ("x = [" + "1, " * 21_000 + "]", "more than 20000 nodes"),
        ("import os\nos.abort()", "expected the text of one T.prim_func"),
        ("@T.prim_func\ndef f(a: T.handle):\n    open('x')", "what is no call of a function of T"),
        (_with("__import__('os').abort()"), "line 23: what is no call of a function of T"),
        (_with("T.call_extern('f')"), "T.call_extern is not accepted"),
        (_with("T.evaluate(0)"), "T.evaluate is not accepted"),
        (_with("while True:\n                    pass"), "this statement is not accepted"),
        (_with("acc[0:4, 0] = T.float32(0)"), "a slice is not accepted"),
        (_with("other[0] = T.float32(0)"), "an unknown buffer other"),
        (_with("T.copy(left, right)"), "what is no call of a function of T"),
        (_with("T.gemm(T.region(left[0, 0], 1, 32, 32))"), "these arguments of T.gemm"),
        (_with("T.fill(T.region(acc[0], 2, 32), 0)"), "a region of another rank"),
        (_with("x = T.sblock_alloc_buffer((1,), scope='local.var')"), "scope 'local.var'"),
        (_with("x = T.sblock_alloc_buffer((1,), 'int4', scope='shared')"), "element type 'int4'"),
        (_changed("blockIdx.x", "threadIdx.x"), "a loop outside of T.Kernel, or one over threads"),
    ],
)
def test_a_text_of_another_form_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TileProgramError) as caught:
        read_program(text)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("acc[0, 0] = T.float32(0)", "an element of the tile acc other than the lane's own"),
        ("T.fill(T.region(acc[0, 0], 2, 16, 32), 0)", "a part of the tile acc"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), nothing)", "the name nothing"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), (bx - 1) // 2)", "that may be negative"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), T.hidden(1))", "T.hidden in an expression"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), [bx for bx in (1,)])", "this expression"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), (lambda: 1)())", "this expression"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), bx.__class__)", "this expression"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), 'text')", "this constant"),
        ("T.fill(T.region(acc[0, 0], 2, 32, 32), 1e999)", "this constant"),
        (f"T.fill(T.region(acc[0, 0], 2, 32, 32), {'-' * 80}1)", "deeper than 64"),
        (
            "T.copy(T.region(A[0, 0], 1, 16, 32), T.region(left[0, 0], 2, 32, 32))",
            "expected equal extents",
        ),
        (
            "T.reduce(T.region(acc[0, 0], 1, 32, 32), T.region(left[0, 0], 2, 32, 32), 'sum', 1,"
            " T.bool(True))",
            "a reduction of axis 1",
        ),
        (
            "T.reduce(T.region(acc[0, 0], 1, 32, 32), T.region(left[0, 0], 2, 32, 32), 'xor', 1,"
            " T.bool(True))",
            "T.reduce of kind 'xor'",
        ),
        (
            "for i in T.parallel(32):\n                    bias[0] = T.float16(1)",
            "several lanes that store one element of bias",
        ),
        (
            "for i in T.parallel(16):\n                    for j in T.parallel(32):\n"
            "                        acc[i, j] = T.float32(0)",
            "a loop over a part of its 32",
        ),
    ],
)
def test_a_statement_that_tiles_do_not_have_is_refused(statement: str, message: str) -> None:
    program = read_program(_with(statement))

    with pytest.raises(TileProgramError) as caught:
        write_triton(program)

    assert message in str(caught.value)


def test_an_object_is_read_by_the_text_that_it_prints() -> None:
    text = program_text("matmul")
    printed = SimpleNamespace(script=lambda: text)
    compiled = SimpleNamespace(prim_func=printed)

    for found in (printed, compiled):
        assert write_triton(read_program(found)) == write_triton(read_program(text))


def test_an_object_that_prints_nothing_is_refused() -> None:
    with pytest.raises(TileProgramError, match="a int is no tile program"):
        read_program(3)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("bx * 32", "A_ptr + ((bx_block * 32 + lane"),
        ("bx * 100000 * 100000", ">= 0"),  # wraps around in 32 bits
        ('T.Cast("int8", bx * 100)', ">= 0"),
    ],
)
def test_an_index_that_may_wrap_around_is_checked_below_too(index: str, expected: str) -> None:
    text = _with(f"T.copy(T.region(A[{index}, 0], 1, 32, 32), T.region(left[0, 0], 2, 32, 32))")
    first = write_triton(read_program(text)).split("left_tile = ")[1].split("\n")[0]

    assert expected in first
    assert (">= 0" in first) == (expected == ">= 0")
