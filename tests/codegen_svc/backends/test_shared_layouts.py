"""Chunks of a block lie in shared memory as one copy of the block, as its readers expect."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

BLOCK = 128


@gluon.jit
def layouts(chunk: gl.constexpr, width: gl.constexpr, columns: gl.constexpr) -> None:
    shared: gl.constexpr = gl.NVMMASharedLayout(columns * 2, 16, 4)
    gl.static_print(gl.to_linear_layout(shared, [1, 1, 128, width]))
    gl.static_print(gl.to_linear_layout(shared, [1, 1, chunk, columns]))


def place(bases: Sequence[Sequence[int]], offset: int) -> tuple[int, int]:
    """The row and column of an element of a layout (1, 1, rows, columns)."""
    row = column = 0
    for bit, (_, _, down, across) in enumerate(bases):
        if offset >> bit & 1:
            row, column = row ^ down, column ^ across
    return row, column


@pytest.mark.parametrize(
    ("chunk", "width", "columns"),
    [(16, 128, 64), (32, 64, 64), (64, 128, 64), (16, 32, 32), (128, 128, 64)],
)
def test_chunks_lie_as_one_copy_of_a_block_would(
    chunk: int,
    width: int,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constants = {"chunk": chunk, "width": width, "columns": columns}
    options = {"enable_fp_fusion": True}
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")  # by its cache, Triton would print nothing
    triton.compile(GluonASTSource(layouts, {}, constants), GPUTarget("cuda", 90, 32), options)
    found = re.findall(r"offset_bases=(\[\[.*?\]\])", capsys.readouterr().out)
    whole, part = (ast.literal_eval(bases) for bases in found)
    elems, chunks = chunk * columns, BLOCK // chunk
    for copy in range(chunks * (width // columns)):
        side, number = divmod(copy, chunks)
        for offset in range(elems):
            row, column = place(part, offset)
            expected = (number * chunk + row, side * columns + column)
            assert place(whole, copy * elems + offset) == expected
