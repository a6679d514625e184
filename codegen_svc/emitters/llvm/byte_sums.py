"""Sums of products of bytes by an instruction that multiplies unsigned bytes by signed ones.

It adds four products of a lane modulo 2^32, exactly (`dots.py`). Both factors of a product are
signed, so 128 is added to each byte of one of them, and sums start at -128 times the sum of the
other one's bytes:

    sum(x * w) = sum((x + 128) * w) - 128 * sum(w) = sum(x * (w + 128)) - 128 * sum(x)

Tiles add it to the left factor, because the sums of a panel's columns are lanes of vectors. Without
a panel, it is added to the right one: the sums of few rows are soon computed. Where an instruction
multiplies signed bytes, nothing is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codegen_svc.emitters.llvm.dots import DotInstruction, add_dots, lanes_of
from codegen_svc.emitters.llvm.text import I8, I16, I32, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, write_loop

LANE_BYTES: Final = 4
_HALVES: Final = integer(int.from_bytes([128] * LANE_BYTES, "little"), I32)
"""128 in each byte of a lane."""
_SHIFT: Final = 16


def raised(fn: FunctionText, found: Value) -> Value:
    """The signed bytes of a vector of i32 with 128 added to each, so that they are unsigned."""
    return fn.op("xor", found, _every(_HALVES, lanes_of(found)))


def add_halves(fn: FunctionText, dot: DotInstruction, before: Value, signed: Value) -> Value:
    """Sums with 128 times the four signed bytes of each lane."""
    return add_dots(fn, dot, before, _every(_HALVES, lanes_of(before)), signed)


def _every(lane: Value, lanes: int) -> Value:
    """A constant vector of equal lanes."""
    return Value(f"<{', '.join([str(lane)] * lanes)}>", f"<{lanes} x {lane.type}>")


def load_first_bytes(fn: FunctionText, place: Value, count: int) -> Value:
    """The first one to three of a lane's bytes at an address; the others are 0."""
    if count == 1:
        return fn.cast("zext", fn.load(I8, place, 1), I32)
    pair = fn.cast("zext", fn.load(I16, place, 1), I32)
    if count == 2:
        return pair
    last = fn.load(I8, fn.element(I8, place, integer(2, I64)), 1)
    return fn.op("or", pair, fn.op("shl", fn.cast("zext", last, I32), integer(_SHIFT, I32)))


def first_row_sums(
    fn: FunctionText, dot: DotInstruction, starts: Sequence[Value], count: int, lanes: int
) -> list[Value]:
    """-128 times the sum of `count` adjacent bytes, which fill vectors, from each address on."""
    vector, size_bytes = f"<{lanes} x {I32}>", LANE_BYTES * lanes
    slots = [fn.alloca("row.total", vector) for _ in starts]
    for slot in slots:
        fn.store(Value("zeroinitializer", vector), slot, size_bytes)

    def add(number: Value) -> None:
        at = fn.op("mul nuw nsw", number, integer(size_bytes, I64))
        for start, slot in zip(starts, slots, strict=True):
            found = fn.load(vector, fn.element(I8, start, at), 1)
            before = fn.load(vector, slot, size_bytes)
            fn.store(add_halves(fn, dot, before, found), slot, size_bytes)

    bounds = (ZERO_I64, integer(count // size_bytes, I64))
    write_loop(fn, "row.vector", bounds, add, is_inner=False, is_unrolled=False)
    totals = [fn.load(vector, slot, size_bytes) for slot in slots]
    name = f"llvm.vector.reduce.add.v{lanes}i32"
    sums = [fn.call_external(name, I32, total) for total in totals]
    return [fn.op("sub", integer(0, I32), total, wish="row.first") for total in sums]
