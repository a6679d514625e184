"""Writes the operations of a kernel over blocks, each by the module for its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.blocks.elements import ELEMENTWISE, ElementWriter
from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation, Program
from codegen_svc.emitters.llvm.blocks.values import (
    ZERO,
    Block,
    Index,
    Scope,
    Workspace,
    flat_index,
    kept_block,
    number_block,
    store_block,
)
from codegen_svc.emitters.llvm.text import I32, I64, FunctionText, Value, integer
from kernelfarm.errors import KernelRejectedError

_AXIS: Final = re.compile(r"axis = (\d+)")
_START: Final = re.compile(r"start = (\d+)")
_ORDER: Final = re.compile(r"order = array<i32: ([\d, ]+)>")
_IGNORED: Final = frozenset({"llvm.intr.assume", "tt.assert", "gpu.barrier", "ttg.barrier"})
# The users of a block that read each element once, in the order of its axes.
_READ_ONCE: Final = ELEMENTWISE | {"tt.store", "tt.reduce", "tt.scan", "tt.atomic_rmw"}

WriteOperation = Callable[["BlockWriter", Operation], None]


@dataclass(frozen=True, slots=True)
class Grid:
    """The index of a block of the grid along x, y and z, and their counts."""

    indices: tuple[Value, ...]
    counts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class CodeParts:
    """What all operations write with: the function, its elements, the memory, the processor."""

    fn: FunctionText
    elements: ElementWriter
    workspace: Workspace
    vector_bits: int


class BlockWriter:
    """The function under construction, and the values that are known in it."""

    def __init__(
        self, program: Program, parts: CodeParts, grid: Grid, more: Mapping[str, WriteOperation]
    ) -> None:
        self.program, self._grid = program, grid
        self.fn, self.elements = parts.fn, parts.elements
        self.workspace, self.vector_bits = parts.workspace, parts.vector_bits
        self.blocks: dict[int, Block] = {}
        self._writers: Mapping[str, WriteOperation] = {**_SHAPES, **more}

    def kind(self, number: int) -> BlockType:
        """The type of a value."""
        return self.program.types[number]

    def block(self, number: int) -> Block:
        """A known value."""
        return self.blocks[number]

    def write_all(self, body: Sequence[Operation]) -> None:
        """Writes operations in order.

        Raises:
            KernelRejectedError: one has no code for processors.
        """
        for op in body:
            if op.name in ELEMENTWISE:
                self._elementwise(op)
            elif op.name in self._writers:
                self._writers[op.name](self, op)
            elif op.name not in _IGNORED:
                raise KernelRejectedError(f"operation {op.name} has no code for processors")

    def define(self, op: Operation, block: Block) -> None:
        """Binds the only result of an operation; keeps its elements if that is cheaper."""
        number = op.results[0]
        self.blocks[number] = self.kept(block) if self._is_worth_keeping(number) else block

    def kept(self, block: Block) -> Block:
        """The block with its elements in memory; a number stays in a register."""
        if block.memory is not None:
            return block
        if not block.kind.shape:
            return number_block(block.kind, block.number())
        return self.copied(block)

    def copied(self, block: Block) -> Block:
        """The block with its elements in memory of its own."""
        memory = self.workspace.part(block.kind)
        store_block(self.fn, block, memory)
        return kept_block(self.fn, block.kind, memory)

    def program_index(self, axis: int) -> Value:
        """The index of this block of the grid along an axis."""
        return self._grid.indices[axis]

    def program_count(self, axis: int) -> Value:
        """The number of blocks of the grid along an axis."""
        return self._grid.counts[axis]

    def _is_worth_keeping(self, number: int) -> bool:
        """True for floats that are not read exactly once; others are index arithmetic."""
        kind = self.kind(number)
        if not kind.shape:
            return True
        if kind.dtype is None or not kind.dtype.is_float:
            return False
        uses = self.program.use_counts.get(number, 0)
        users = self.program.users.get(number, ())
        return uses != 1 or users[0].name not in _READ_ONCE

    def _elementwise(self, op: Operation) -> None:
        operands = [self.block(number) for number in op.operands]
        rank = len(self.kind(op.results[0]).shape)

        def element(scope: Scope, index: Index) -> Value:
            # The condition of a selection of blocks may be a number.
            values = [
                operand.at(scope, index if len(operand.kind.shape) == rank else ())
                for operand in operands
            ]
            return self.elements.write(op, values)

        self.define(op, Block(self.kind(op.results[0]), element))


def _program_index(writer: BlockWriter, op: Operation) -> None:
    value = writer.program_index("xyz".index(op.words.strip()))
    writer.define(op, number_block(writer.kind(op.results[0]), value))


def _program_count(writer: BlockWriter, op: Operation) -> None:
    value = writer.program_count("xyz".index(op.words.strip()))
    writer.define(op, number_block(writer.kind(op.results[0]), value))


def _constant(writer: BlockWriter, op: Operation) -> None:
    kind = writer.kind(op.results[0])
    value = writer.elements.constant(op, kind)
    writer.blocks[op.results[0]] = number_block(kind, value)


def _range(writer: BlockWriter, op: Operation) -> None:
    start = int(_found(_START, op))

    def element(_: Scope, index: Index) -> Value:
        number = writer.fn.cast("trunc", index[0], I32) if index[0] is not ZERO else integer(0, I32)
        return writer.fn.op("add nsw", number, integer(start, I32)) if start else number

    writer.define(op, Block(writer.kind(op.results[0]), element))


def _splat(writer: BlockWriter, op: Operation) -> None:
    source = writer.block(op.operands[0])
    value = source.number() if not source.kind.shape else None

    def element(scope: Scope, _: Index) -> Value:
        return value if value is not None else source.at(scope, (ZERO,) * len(source.kind.shape))

    writer.blocks[op.results[0]] = Block(writer.kind(op.results[0]), element)


def _expand(writer: BlockWriter, op: Operation) -> None:
    source, axis = writer.block(op.operands[0]), int(_found(_AXIS, op))

    def element(scope: Scope, index: Index) -> Value:
        return source.at(scope, index[:axis] + index[axis + 1 :])

    writer.blocks[op.results[0]] = Block(writer.kind(op.results[0]), element)


def _broadcast(writer: BlockWriter, op: Operation) -> None:
    source = writer.block(op.operands[0])
    writer.blocks[op.results[0]] = Block(writer.kind(op.results[0]), source.at)


def _transpose(writer: BlockWriter, op: Operation) -> None:
    source = writer.block(op.operands[0])
    order = [int(axis) for axis in _found(_ORDER, op).split(",")]

    def element(scope: Scope, index: Index) -> Value:
        own = {axis: number for axis, number in zip(order, index, strict=True)}
        return source.at(scope, tuple(own[axis] for axis in range(len(order))))

    writer.blocks[op.results[0]] = Block(writer.kind(op.results[0]), element)


def _reshape(writer: BlockWriter, op: Operation) -> None:
    source, kind = writer.block(op.operands[0]), writer.kind(op.results[0])
    sides, fn = source.kind.shape, writer.fn
    if source.memory is not None:
        writer.blocks[op.results[0]] = kept_block(fn, kind, source.memory)
        return

    def element(scope: Scope, index: Index) -> Value:
        rest, own = flat_index(fn, kind.shape, index), list[Value]()
        for side in reversed(sides):
            own.insert(0, fn.op("urem", rest, integer(side, I64)))
            rest = fn.op("udiv", rest, integer(side, I64))
        return source.at(scope, tuple(own))

    writer.blocks[op.results[0]] = Block(kind, element)


def _found(pattern: re.Pattern[str], op: Operation) -> str:
    match = pattern.search(op.attributes)
    if match is None:
        raise KernelRejectedError(
            f"operation {op.name} {op.attributes[:80]}: its form is not known"
        )
    return match[1]


def axis_of(op: Operation) -> int:
    """The axis that an operation states.

    Raises:
        KernelRejectedError: it states none.
    """
    return int(_found(_AXIS, op))


_SHAPES: Final[Mapping[str, WriteOperation]] = {
    "tt.get_program_id": _program_index,
    "tt.get_num_programs": _program_count,
    "arith.constant": _constant,
    "tt.make_range": _range,
    "tt.splat": _splat,
    "tt.unsplat": _splat,
    "tt.expand_dims": _expand,
    "tt.broadcast": _broadcast,
    "tt.trans": _transpose,
    "tt.reshape": _reshape,
}
