"""Squares of elements transposed in vector registers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from codegen_svc.emitters.llvm.text import FunctionText, Value

_PIECE_BITS: Final = 128
"""An instruction of x86-64 interleaves elements within such pieces of two vectors, or chooses among
their whole pieces. One of NEON and SVE interleaves those of whole vectors."""


def piece_bits(fn: FunctionText) -> int:
    """The bits of a piece of vectors within which one instruction permutes elements."""
    return _PIECE_BITS * (fn.module.vscale or 1)


def transposed(fn: FunctionText, rows: Sequence[Value], element_bits: int) -> list[Value]:
    """The columns of a square whose rows are vectors.

    Shapes: `rows` and the result: n vectors of n integers of `element_bits`; n is a power of two.
    """
    side = len(rows)
    kind = f"<{side} x i{element_bits}>"
    piece = min(side, piece_bits(fn) // element_bits)
    groups = [rows[start : start + piece] for start in range(0, side, piece)]
    turned = [_turned_within(fn, kind, group, side) for group in groups]
    columns = [_turned_pieces(fn, kind, pieces, piece) for pieces in zip(*turned, strict=True)]
    return list(chain.from_iterable(zip(*columns, strict=True)))


def _turned_within(fn: FunctionText, kind: str, rows: Sequence[Value], length: int) -> list[Value]:
    """Transposes the squares of elements that each piece of the rows forms.

    A round interleaves row k with the row half of them later. This rotates the bits of (row,
    element) by one, so after one round for each bit of a row's number, both have changed places.
    """
    found, piece = list(rows), len(rows)
    half = piece // 2
    masks = [
        [
            start + first + at // 2 + at % 2 * length
            for start in range(0, length, piece)
            for at in range(piece)
        ]
        for first in (0, half)
    ]
    for _ in range(piece.bit_length() - 1):
        found = [
            shuffled(fn, kind, found[k], found[k + half], mask)
            for k in range(half)
            for mask in masks
        ]
    return found


def _turned_pieces(fn: FunctionText, kind: str, rows: Sequence[Value], piece: int) -> list[Value]:
    """Transposes a square of pieces.

    A round takes the even pieces of two neighbouring rows, and the odd ones. This rotates the bits
    of (row, piece) by one, too.
    """
    found, count = list(rows), len(rows)
    masks = [
        [p * piece + at for p in range(parity, 2 * count, 2) for at in range(piece)]
        for parity in (0, 1)
    ]
    for _ in range(count.bit_length() - 1):
        found = [
            shuffled(fn, kind, found[k], found[k + 1], mask)
            for mask in masks
            for k in range(0, count, 2)
        ]
    return found


def shuffled(fn: FunctionText, kind: str, a: Value, b: Value, mask: Sequence[int]) -> Value:
    """The vector of those lanes of two vectors that a mask lists."""
    listed = ", ".join(f"i32 {at}" for at in mask)
    instruction = f"shufflevector {a}, {b}, <{len(mask)} x i32> <{listed}>"
    return fn.define("turn", kind, instruction)
