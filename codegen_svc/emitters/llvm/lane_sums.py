"""Sums of the lanes of several vectors at once, as one vector.

A round adds two vectors to one that has half of the lanes of each, so the sums of 16 vectors take
15 additions and 30 permutations. One vector after the other takes 64 additions and as many
permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codegen_svc.emitters.llvm.text import FLOAT, I32, FunctionText, Value, floating, integer
from codegen_svc.emitters.llvm.transposition import piece_bits, shuffled

_ALONE: Final = 2
"""So many vectors are summed one after the other."""
_FLOAT_BITS: Final = 32


def lane_sums(fn: FunctionText, vectors: Sequence[Value], lanes: int) -> list[Value]:
    """The sum of the lanes of each vector of f32 or i32.

    `lanes` is a power of two, and at least the lanes of a piece of 128 bits.
    """
    if len(vectors) <= _ALONE:
        return [_sum_of(fn, vector, lanes) for vector in vectors]
    found: list[Value] = []
    kind = _lane_type(vectors[0])
    for first in range(0, len(vectors), lanes):
        group = vectors[first : first + lanes]
        summed = _summed(fn, group, lanes)
        found += (
            fn.define("sum", kind, f"extractelement {summed}, {integer(lane, I32)}")
            for lane in range(len(group))
        )
    return found


def _lane_type(vector: Value) -> str:
    return I32 if vector.type.endswith(f" {I32}>") else FLOAT


def _sum_of(fn: FunctionText, vector: Value, lanes: int) -> Value:
    if _lane_type(vector) == I32:
        return fn.call_external(f"llvm.vector.reduce.add.v{lanes}i32", I32, vector, wish="sum")
    name = f"llvm.vector.reduce.fadd.v{lanes}f32"
    fn.module.declare(name, FLOAT, (FLOAT, vector.type))
    start = floating(-0.0, FLOAT)
    return fn.define("sum", FLOAT, f"call reassoc {FLOAT} @{name}({start}, {vector})")


def _summed(fn: FunctionText, vectors: Sequence[Value], lanes: int) -> Value:
    """The vector of the sums of up to `lanes` vectors.

    First neighbours within pieces are added, then neighbouring pieces: x86-64 has instructions that
    permute elements within pieces, or whole pieces. With SVE, a vector is one piece.
    """
    unused = Value("zeroinitializer", vectors[0].type)
    found = [*vectors, *(unused for _ in range(lanes - len(vectors)))]
    piece = piece_bits(fn) // _FLOAT_BITS
    width, add = 1, "add" if _lane_type(vectors[0]) == I32 else "fadd"
    while width < lanes:
        masks = [_mask(lanes, piece, width, parity) for parity in (0, 1)]
        found = [
            fn.op(add, *(shuffled(fn, a.type, a, b, mask) for mask in masks))
            for a, b in zip(found[::2], found[1::2], strict=True)
        ]
        width *= 2
    return found[0]


def _mask(lanes: int, piece: int, width: int, parity: int) -> list[int]:
    """The lanes of two vectors that are added to their neighbours; each sum has `width` parts."""
    if width >= piece:
        first = [at for at in range(lanes) if at // piece % 2 == parity]
        return first + [lanes + at for at in first]
    own = range(parity, piece, 2)
    pieces = range(0, lanes, piece)
    return [start + side + at for start in pieces for side in (0, lanes) for at in own]
