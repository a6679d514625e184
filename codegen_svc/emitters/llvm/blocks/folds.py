"""Reductions and scans of a kernel over blocks; users state how two elements are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from codegen_svc.emitters.llvm.blocks.elements import (
    ELEMENTWISE,
    load_element,
    memory_of,
    store_element,
)
from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation, Region
from codegen_svc.emitters.llvm.blocks.values import (
    ZERO,
    Block,
    Index,
    Scope,
    element_address,
    kept_block,
    over,
)
from codegen_svc.emitters.llvm.blocks.writer import BlockWriter, WriteOperation, axis_of
from codegen_svc.emitters.llvm.text import I64, Value, integer
from codegen_svc.emitters.llvm.unit import write_loop
from kernelfarm.errors import KernelRejectedError

LANES: Final = 16
"""Running results of a row, so that LLVM combines several elements at once."""


def _combined(writer: BlockWriter, region: Region, values: Sequence[Value]) -> list[Value]:
    """What the region computes of the elements of both sides."""
    known = dict(zip(region.params, values, strict=True))
    for op in region.body:
        if op.name in ("tt.reduce.return", "tt.scan.return"):
            return [_known(writer, known, number) for number in op.operands]
        if op.name == "arith.constant":
            number = op.results[0]
            known[number] = writer.elements.constant(op, writer.kind(number))
        elif op.name in ELEMENTWISE:
            operands = [_known(writer, known, number) for number in op.operands]
            known[op.results[0]] = writer.elements.write(op, operands)
        else:
            raise KernelRejectedError(f"operation {op.name} in a reduction has no code")
    raise KernelRejectedError("a reduction without a result has no code")


def _known(writer: BlockWriter, known: Mapping[int, Value], number: int) -> Value:
    return known[number] if number in known else writer.block(number).number()


def _reduce(writer: BlockWriter, op: Operation) -> None:
    axis = axis_of(op)
    operands = [writer.block(number) for number in op.operands]
    shape = operands[0].kind.shape
    left = (*shape[:axis], *shape[axis + 1 :])
    kinds = [BlockType(left, operand.kind.element) for operand in operands]
    memories = [writer.workspace.part(kind, "reduced") for kind in kinds]
    is_row = axis == len(shape) - 1 and shape[axis] >= 2 * LANES
    if is_row:
        over(
            writer.fn,
            left,
            lambda outer: _reduce_row(writer, op, (operands, kinds, memories), outer),
        )
    else:
        _reduce_slices(writer, op, (operands, kinds, memories), axis)
    for number, kind, memory in zip(op.results, kinds, memories, strict=False):
        writer.blocks[number] = (
            kept_block(writer.fn, kind, memory)
            if kind.shape
            else writer.kept(Block(kind, kept_block(writer.fn, kind, memory).element))
        )


_Parts = tuple[Sequence[Block], Sequence[BlockType], Sequence[Value]]


def _reduce_slices(writer: BlockWriter, op: Operation, parts: _Parts, axis: int) -> None:
    """Combines whole slices across an axis, one after the other."""
    operands, kinds, memories = parts
    fn = writer.fn
    shape = operands[0].kind.shape

    def copy_first(index: Index) -> None:
        scope, whole = Scope(), (*index[:axis], ZERO, *index[axis:])
        for operand, kind, memory in zip(operands, kinds, memories, strict=True):
            at = element_address(fn, kind, memory, index)
            store_element(fn, kind, operand.at(scope, whole), at)

    def add_slice(number: Value) -> None:
        def add(index: Index) -> None:
            scope, whole = Scope(), (*index[:axis], number, *index[axis:])
            places = [
                element_address(fn, kind, memory, index)
                for kind, memory in zip(kinds, memories, strict=True)
            ]
            before = [load_element(fn, k, at) for k, at in zip(kinds, places, strict=True)]
            here = [operand.at(scope, whole) for operand in operands]
            found = _combined(writer, op.regions[0], (*before, *here))
            for kind, value, at in zip(kinds, found, places, strict=True):
                store_element(fn, kind, value, at)

        over(fn, kinds[0].shape, add)

    over(fn, kinds[0].shape, copy_first)
    bounds = (integer(1, I64), integer(shape[axis], I64))
    write_loop(fn, "slice", bounds, add_slice, is_inner=not kinds[0].shape)


def _reduce_row(writer: BlockWriter, op: Operation, parts: _Parts, outer: Index) -> None:
    """Combines a row in lanes, and the lanes by halves."""
    operands, kinds, memories = parts
    fn, region = writer.fn, op.regions[0]
    row = [BlockType((LANES,), operand.kind.element) for operand in operands]
    lanes = [fn.alloca("lanes", memory_of(kind), LANES) for kind in row]

    def copy_first(index: Index) -> None:
        scope = Scope()
        for operand, kind, memory in zip(operands, row, lanes, strict=True):
            value = operand.at(scope, (*outer, *index))
            store_element(fn, kind, value, element_address(fn, kind, memory, index))

    def combine(index: Index, here: Sequence[Value]) -> None:
        places = [element_address(fn, k, m, index) for k, m in zip(row, lanes, strict=True)]
        before = [load_element(fn, kind, at) for kind, at in zip(row, places, strict=True)]
        found = _combined(writer, region, (*before, *here))
        for kind, value, at in zip(row, found, places, strict=True):
            store_element(fn, kind, value, at)

    def add_group(number: Value) -> None:
        start = fn.op("mul nuw nsw", number, integer(LANES, I64))

        def add(index: Index) -> None:
            at, scope = fn.op("add nuw nsw", start, index[0]), Scope()
            combine(index, [operand.at(scope, (*outer, at)) for operand in operands])

        over(fn, (LANES,), add)

    over(fn, (LANES,), copy_first)
    groups = operands[0].kind.shape[-1] // LANES
    write_loop(fn, "group", (integer(1, I64), integer(groups, I64)), add_group, is_inner=False)
    half = LANES
    while half > 1:
        half //= 2
        for lane in range(half):
            other = (integer(lane + half, I64),)
            here = [
                load_element(fn, k, element_address(fn, k, m, other))
                for k, m in zip(row, lanes, strict=True)
            ]
            combine((integer(lane, I64),), here)
    for kind, memory, lane_kind, spot in zip(kinds, memories, row, lanes, strict=True):
        value = load_element(fn, lane_kind, element_address(fn, lane_kind, spot, (ZERO,)))
        store_element(fn, kind, value, element_address(fn, kind, memory, outer))


def _scan(writer: BlockWriter, op: Operation) -> None:
    axis, fn = axis_of(op), writer.fn
    is_reversed = "reverse = true" in op.attributes
    operands = [writer.block(number) for number in op.operands]
    kinds = [writer.kind(number) for number in op.results]
    memories = [writer.workspace.part(kind, "scanned") for kind in kinds]
    shape = operands[0].kind.shape
    extent = shape[axis]
    left = (*shape[:axis], *shape[axis + 1 :])

    def position(number: Value) -> Value:
        return fn.op("sub nsw", integer(extent - 1, I64), number) if is_reversed else number

    def step(outer: Index, number: Value) -> None:
        here = (*outer[:axis], position(number), *outer[axis:])
        previous = position(fn.op("sub nsw", number, integer(1, I64)))
        before_at = (*outer[:axis], previous, *outer[axis:])
        scope = Scope()
        values = [operand.at(scope, here) for operand in operands]
        before = [
            load_element(fn, kind, element_address(fn, kind, memory, before_at))
            for kind, memory in zip(kinds, memories, strict=True)
        ]
        found = _combined(writer, op.regions[0], (*before, *values))
        for kind, memory, value in zip(kinds, memories, found, strict=True):
            store_element(fn, kind, value, element_address(fn, kind, memory, here))

    def row(outer: Index) -> None:
        first, scope = (*outer[:axis], position(ZERO), *outer[axis:]), Scope()
        for operand, kind, memory in zip(operands, kinds, memories, strict=True):
            value = operand.at(scope, first)
            store_element(fn, kind, value, element_address(fn, kind, memory, first))
        bounds = (integer(1, I64), integer(extent, I64))
        write_loop(fn, "step", bounds, lambda number: step(outer, number), is_inner=True)

    over(fn, left, row)
    for number, kind, memory in zip(op.results, kinds, memories, strict=True):
        writer.blocks[number] = kept_block(fn, kind, memory)


FOLDS: Final[Mapping[str, WriteOperation]] = {"tt.reduce": _reduce, "tt.scan": _scan}
