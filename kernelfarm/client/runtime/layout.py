"""A plan for one assignment of its sizes: computes once every number that calls need."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.client.runtime.picks import picker
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.views import SizedBuffer, Sizes, View, sized_buffer, view_of
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import TensorType
from kernelfarm.ir.plan_memory import arena_bytes, buffer_uses
from kernelfarm.ir.program_ir import (
    ARENA_ALIGNMENT_BYTES,
    BufferKind,
    Launch,
    Plan,
    TensorView,
)

POINTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class MadeBuffer:
    """A buffer that the client makes, with shape and strides (in elements) of its tensor.

    It is for an output, or for a temporary that is apart from the arena.
    """

    buffer: SizedBuffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """One output of the program: a view and the layout to return it in, or an integer."""

    view: View | None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    value: int | None = None


MIN_LATE_BYTES = 1 << 14
"""Judgement: smaller outputs are made together at the start of a call, which takes less time."""


class PointerTable:
    """The layout of one C array with the pointers of all launches; each launch reads its own range.

    `known` are the buffers whose addresses are known before the first step. In a call's list of
    addresses they come first, then one 0 for each extern result and each buffer that is made later
    (`kept_count`; `kept` are their indices), then the temporaries in the arena.
    `firsts` has the index of each launch's first pointer; `table_indices` has the indices of each
    buffer's pointers.
    """

    def __init__(
        self, launches: list[tuple[SizedBuffer, ...]], late: Mapping[int, int] | None = None
    ) -> None:
        used = {buffer.index: buffer for buffers in launches for buffer in buffers}
        groups: tuple[list[int], list[int], list[int]] = [], [], []
        for index in sorted(used):
            groups[_address_group(used[index], late or {})].append(index)
        self.known, kept, self.temporaries = groups
        self.kept_count = len(kept)
        self.kept = frozenset(kept)
        numbers = {index: number for number, index in enumerate(i for g in groups for i in g)}
        self.firsts: list[int] = []
        order: list[int] = []
        self.table_indices: dict[int, list[int]] = {}
        for buffers in launches:
            self.firsts.append(len(order))
            for buffer in buffers:
                self.table_indices.setdefault(buffer.index, []).append(len(order))
                order.append(numbers[buffer.index])
        self.length = len(order)
        self.pack_into = struct.Struct(f"={self.length}Q").pack_into
        self.pick = picker(order)


def _address_group(buffer: SizedBuffer, late: Mapping[int, int]) -> int:
    if buffer.is_in_arena:
        return 2
    return 1 if buffer.kind is BufferKind.EXTERN or buffer.index in late else 0


class Layout:
    """Buffers, views and tables of a program under one assignment of its symbols.

    Buffers are numbered: first the inputs and constants that the plan reads, then outputs, then
    extern results and temporaries, so that a call's list of tensors grows in this order. `sizes`
    are the values of the plan's symbols, `traced_sizes` those of the captured graph's: one plan
    serves every graph with the same canonical form, and these differ in the names of symbols.

    `late` has, by index, the first step that uses each large output that no earlier step needs, and
    each temporary that is apart; the other outputs are made at the start of a call.
    """

    def __init__(self, program: BoundProgram, sizes: Sizes, traced_sizes: Sizes) -> None:
        plan = program.plan
        self.sizes: Mapping[str, int] = dict(sizes)
        self.traced_sizes: Mapping[str, int] = dict(traced_sizes)
        late = _made_late(plan, self.sizes)
        ordered = sorted(plan.buffers, key=lambda b: (_ORDER[b.kind], b.name in late))
        buffers = [sized_buffer(buffer, i, self.sizes) for i, buffer in enumerate(ordered)]
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.read = [s for s in buffers if s.kind in (BufferKind.INPUT, BufferKind.CONSTANT)]
        self.by_index = buffers
        self.late = {self.buffers[name].index: step for name, step in late.items()}
        self.temporaries = [s for s in buffers if s.is_in_arena]
        self.arena_bytes = arena_bytes(plan, self.sizes)
        self._check_arena()
        self.results = [
            self._result(output, kind)
            for output, kind in zip(plan.outputs, program.captured.graph.output_types, strict=True)
        ]
        self.made = [self._made(s) for s in buffers if s.kind is BufferKind.OUTPUT or s.is_apart]
        self.table = PointerTable(
            [
                tuple(self.buffers[name] for name in step.buffers)
                for step in plan.steps
                if isinstance(step, Launch)
            ],
            self.late,
        )

    @property
    def beside_bytes(self) -> int:
        """The bytes that a call allocates beside the arena, some of them after freeing others."""
        return sum(
            buffer.size_elems * buffer.dtype.itemsize
            for buffer in self.by_index
            if buffer.kind in (BufferKind.EXTERN, BufferKind.OUTPUT) or buffer.is_apart
        )

    def _check_arena(self) -> None:
        for buffer in self.temporaries:
            end = buffer.offset_bytes + buffer.size_elems * buffer.dtype.itemsize
            is_placed = (
                buffer.offset_bytes >= 0 and buffer.offset_bytes % ARENA_ALIGNMENT_BYTES == 0
            )
            if not is_placed or buffer.size_elems < 0 or end > self.arena_bytes:
                raise InvalidGraphError(
                    f"plan: buffer {buffer.name} at bytes {buffer.offset_bytes} to {end} of an"
                    f" arena of {self.arena_bytes}; expected it inside, aligned to"
                    f" {ARENA_ALIGNMENT_BYTES}"
                )

    def view(self, view: TensorView) -> View:
        """A view of the plan with numbers for its sizes."""
        return view_of(view, self.buffers, self.sizes)

    def _result(self, output: TensorView | Expr | None, kind: TensorType | None) -> OutputLayout:
        if output is None:
            return OutputLayout(None)
        if isinstance(output, Expr):
            return OutputLayout(None, value=output.evaluate(self.sizes))
        view = self.view(output)
        if kind is None or kind.strides is None:
            return OutputLayout(view, view.shape, view.strides)
        shape = tuple(extent.evaluate(self.traced_sizes) for extent in kind.shape)
        strides = tuple(stride.evaluate(self.traced_sizes) for stride in kind.strides)
        return OutputLayout(view, shape, strides)

    def _made(self, buffer: SizedBuffer) -> MadeBuffer:
        views = [r.view for r in self.results if r.view is not None and r.view.buffer is buffer]
        whole = len(views) == 1 and views[0].offset == 0 and views[0].dtype is buffer.dtype
        if whole and views[0].span_elems() == buffer.size_elems:
            return MadeBuffer(buffer, views[0].shape, views[0].strides)
        return MadeBuffer(buffer, (buffer.size_elems,), (1,))


def _made_late(plan: Plan, sizes: Sizes) -> dict[str, int]:
    uses = buffer_uses(plan)
    found = {}
    for buffer in plan.buffers:
        first, _ = uses.get(buffer.name, (0, 0))
        if buffer.is_apart:
            found[buffer.name] = first
            continue
        is_output = buffer.kind is BufferKind.OUTPUT and 0 < first < len(plan.steps)
        size = buffer.dtype.itemsize_bytes * buffer.size_elems.evaluate(sizes) if is_output else 0
        if size >= MIN_LATE_BYTES:
            found[buffer.name] = first
    return found


_ORDER = {
    BufferKind.INPUT: 0,
    BufferKind.CONSTANT: 0,
    BufferKind.OUTPUT: 1,
    BufferKind.EXTERN: 2,
    BufferKind.TEMPORARY: 3,
}
