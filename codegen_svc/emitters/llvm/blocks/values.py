"""Values of a kernel over blocks: computed where they are used, or kept in a thread's memory.

Index arithmetic, masks and addresses are computed again in each loop that uses them, so that LLVM
sees how addresses advance. What costs more, and what is loaded, is kept in the thread's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from codegen_svc.emitters.llvm.blocks.elements import (
    load_element,
    memory_of,
    size_bytes,
    store_element,
)
from codegen_svc.emitters.llvm.blocks.program import BlockType
from codegen_svc.emitters.llvm.text import I8, I64, PTR, FunctionText, Value, integer
from codegen_svc.emitters.llvm.unit import write_loop
from kernelfarm.errors import KernelRejectedError

MAX_WORKSPACE_BYTES: Final = 256 << 20
"""The memory of one thread for all blocks of a kernel that are kept."""
ALIGNMENT_BYTES: Final = 64

Index = tuple[Value, ...]
ZERO: Final = integer(0, I64)


@dataclass(eq=False)
class Scope:
    """Straight-line code in a loop over elements: the elements that it computed so far."""

    known: dict[tuple[int, tuple[str, ...]], Value] = field(default_factory=dict)


ElementOf = Callable[[Scope, Index], Value]


@dataclass(frozen=True, eq=False)
class Block:
    """A value of a fixed shape; `memory` has its elements in row-major order, if it is kept."""

    kind: BlockType
    element: ElementOf
    memory: Value | None = None

    def at(self, scope: Scope, index: Index) -> Value:
        """The element at an index; along an axis of side 1, any index is the first."""
        sides = zip(self.kind.shape, index, strict=True)
        index = tuple(ZERO if side == 1 else number for side, number in sides)
        key = (id(self), tuple(number.text for number in index))
        if key not in scope.known:
            scope.known[key] = self.element(scope, index)
        return scope.known[key]

    def number(self) -> Value:
        """The value of a block without axes."""
        return self.at(Scope(), ())


class Workspace:
    """The memory of one thread, from which kept blocks get their parts."""

    def __init__(self, fn: FunctionText, base: Value) -> None:
        self._fn, self._base = fn, base
        self.size_bytes = 0

    def part(self, kind: BlockType, wish: str = "block") -> Value:
        """Memory for a block.

        Raises:
            KernelRejectedError: the kernel's blocks need too much memory.
        """
        offset = self.size_bytes
        needed = kind.elems * size_bytes(kind)
        self.size_bytes += -(-needed // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self.size_bytes > MAX_WORKSPACE_BYTES:
            raise KernelRejectedError(
                f"the blocks of a user kernel need more than {MAX_WORKSPACE_BYTES >> 20} MiB for"
                " each thread; use smaller blocks"
            )
        return self._fn.define(
            wish, PTR, f"getelementptr inbounds {I8}, {self._base}, i64 {offset}"
        )


def over(
    fn: FunctionText, shape: Sequence[int], body: Callable[[Index], None], index: Index = ()
) -> None:
    """Writes loops over all indices of a shape, the last axis innermost."""
    if not shape:
        body(index)
        return
    if shape[0] == 1:
        over(fn, shape[1:], body, (*index, ZERO))
        return
    is_inner = all(side == 1 for side in shape[1:])
    bounds = (ZERO, integer(shape[0], I64))
    write_loop(
        fn,
        "i",
        bounds,
        lambda number: over(fn, shape[1:], body, (*index, number)),
        is_inner=is_inner,
    )


def flat_index(fn: FunctionText, shape: Sequence[int], index: Index) -> Value:
    """The position of an element in row-major order."""
    flat = ZERO
    for side, number in zip(shape, index, strict=True):
        if side == 1:
            continue
        if flat is not ZERO:
            flat = fn.op("mul nuw nsw", flat, integer(side, I64))
        flat = number if flat is ZERO else fn.op("add nuw nsw", flat, number)
    return flat


def kept_block(fn: FunctionText, kind: BlockType, memory: Value) -> Block:
    """A block whose elements are in memory."""

    def element(_: Scope, index: Index) -> Value:
        return load_element(fn, kind, element_address(fn, kind, memory, index))

    return Block(kind, element, memory)


def element_address(fn: FunctionText, kind: BlockType, memory: Value, index: Index) -> Value:
    """The address of an element of a kept block."""
    return fn.element(memory_of(kind), memory, flat_index(fn, kind.shape, index))


def store_block(
    fn: FunctionText, block: Block, memory: Value, kind: BlockType | None = None
) -> None:
    """Computes all elements of a block into memory, as a type that may differ from its own."""
    stored = kind or block.kind

    def body(index: Index) -> None:
        value = block.at(Scope(), index)
        store_element(fn, stored, value, element_address(fn, stored, memory, index))

    over(fn, block.kind.shape, body)


def number_block(kind: BlockType, value: Value) -> Block:
    """A block of equal elements, or a number."""
    return Block(kind, lambda _scope, _index: value)
