"""Sums of products of bytes: an instruction adds four products of a lane, VPDPBUSD.

It multiplies unsigned bytes by signed ones and adds modulo 2^32, exactly. Both factors of a product
are signed, so 128 is added to each byte of the right one, and the sums of a row start at -128 times
the sum of the row's bytes:

    sum(x * w) = sum(x * (w + 128)) - 128 * sum(x)

Bytes of x past the last term are 0, so those of the right factor there do not matter.
"""

from __future__ import annotations

from typing import Final

from codegen_svc.emitters.llvm.text import I1, I8, I16, I32, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, write_loop

LANE_BYTES: Final = 4
_HALF: Final = 128
_SHIFT: Final = 16


def add_bytes(fn: FunctionText, before: Value, right: Value, left: Value) -> Value:
    """Sums with four products in each lane: of unsigned bytes of `right` and signed ones of `left`.

    Shapes: before, right, left: a vector of i32
    """
    lanes = vector_lanes(before)
    kind = f"<{LANE_BYTES * lanes} x {I8}>"
    sides = [fn.cast("bitcast", side, kind) for side in (right, left)]
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return fn.call_external(name, before.type, before, *sides)


def vector_lanes(vector: Value) -> int:
    """The number of lanes of a vector."""
    return int(vector.type[1:].partition(" ")[0])


def unsigned(fn: FunctionText, found: Value) -> Value:
    """Four signed bytes in each lane, with 128 added to each of them."""
    half = integer(int.from_bytes([_HALF] * LANE_BYTES, "little"), I32)
    if found.type == I32:
        return fn.op("xor", found, half)
    return fn.op("xor", found, _constant(half, vector_lanes(found)))


def _constant(lane: Value, lanes: int) -> Value:
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


def first_sums(fn: FunctionText, starts: list[Value], count: Value, lanes: int) -> list[Value]:
    """-128 times the sum of `count` adjacent bytes, from each address on."""
    bytes_ = LANE_BYTES * lanes
    vector, kind = f"<{lanes} x {I32}>", f"<{bytes_} x {I8}>"
    slots = [fn.alloca("row.total", vector) for _ in starts]
    for slot in slots:
        fn.store(Value("zeroinitializer", vector), slot, LANE_BYTES * lanes)
    size = integer(bytes_, I64)
    whole = fn.op("udiv", count, size, wish="row.vectors")
    behind = fn.op("add nuw nsw", count, integer(bytes_ - 1, I64))
    all_ = fn.op("udiv", behind, size, wish="row.vectors.all")
    half = _constant(integer(int.from_bytes([_HALF] * LANE_BYTES, "little"), I32), lanes)

    def add(number: Value, mask: Value | None) -> None:
        at = fn.op("mul nuw nsw", number, size)
        for start, slot in zip(starts, slots, strict=True):
            place = fn.element(I8, start, at)
            found = fn.load(kind, place, 1) if mask is None else _masked(fn, kind, place, mask)
            before = fn.load(vector, slot, LANE_BYTES * lanes)
            left = fn.cast("bitcast", found, vector)
            fn.store(add_bytes(fn, before, half, left), slot, LANE_BYTES * lanes)

    def rest(number: Value) -> None:
        left = fn.op("sub nuw nsw", count, fn.op("mul nuw nsw", number, size))
        add(number, _first_lanes(fn, left, bytes_))

    bounds = (ZERO_I64, whole)
    write_loop(fn, "row.vector", bounds, lambda at: add(at, None), is_inner=False)
    write_loop(fn, "row.rest", (whole, all_), rest, is_inner=False)
    name = f"llvm.vector.reduce.add.v{lanes}i32"
    totals = [fn.load(vector, slot, LANE_BYTES * lanes) for slot in slots]
    return [
        fn.op("sub", integer(0, I32), fn.call_external(name, I32, total), wish="row.first")
        for total in totals
    ]


def _first_lanes(fn: FunctionText, count: Value, lanes: int) -> Value:
    """A mask of the first `count` of so many lanes."""
    kind = f"<{lanes} x {I8}>"
    one = fn.define("", kind, f"insertelement {kind} poison, {fn.cast('trunc', count, I8)}, i32 0")
    mask = f"<{lanes} x i32> zeroinitializer"
    limit = fn.define("", kind, f"shufflevector {one}, {kind} poison, {mask}")
    numbers = ", ".join(f"{I8} {lane}" for lane in range(lanes))
    return fn.define("mask", f"<{lanes} x {I1}>", f"icmp ult {kind} <{numbers}>, {limit.text}")


def _masked(fn: FunctionText, kind: str, place: Value, mask: Value) -> Value:
    """A vector whose masked lanes are loaded, and whose others are 0."""
    name = f"llvm.masked.load.v{kind[1:].partition(' ')[0]}{I8}.p0"
    align, other = integer(1, I32), Value("zeroinitializer", kind)
    fn.module.declare(name, kind, (place.type, I32, mask.type, kind))
    return fn.define("", kind, f"call {kind} @{name}({place}, {align}, {mask}, {other})")
