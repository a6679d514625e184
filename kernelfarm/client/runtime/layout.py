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
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES, BufferKind, Launch, TensorView

POINTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class OutputBuffer:
    """An output's buffer, with shape and strides (in elements) of the tensor to allocate for it."""

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


_ADDRESS_ORDER = (
    (BufferKind.INPUT, BufferKind.CONSTANT, BufferKind.OUTPUT),
    (BufferKind.EXTERN,),
    (BufferKind.TEMPORARY,),
)


class PointerTable:
    """The layout of one C array with the pointers of all launches; each launch reads its own range.

    `known` are the buffers whose addresses are known before the first step. In a call's list of
    addresses they come first, then one 0 for each extern result (`kept_count`), then temporaries.
    `firsts` has the index of each launch's first pointer; `table_indices` has the indices of each
    buffer's pointers.
    """

    def __init__(self, launches: list[tuple[SizedBuffer, ...]]) -> None:
        used = {buffer.index: buffer for buffers in launches for buffer in buffers}
        groups = [sorted(i for i, s in used.items() if s.kind in kinds) for kinds in _ADDRESS_ORDER]
        self.known, kept, self.temporaries = groups
        self.kept_count = len(kept)
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


class Layout:
    """Buffers, views and tables of a program under one assignment of its symbols.

    Buffers are numbered: first the inputs and constants that the plan reads, then outputs, then
    extern results and temporaries, so that a call's list of tensors grows in this order. `sizes`
    are the values of the plan's symbols, `traced_sizes` those of the captured graph's: one plan
    serves every graph with the same canonical form, and these differ in the names of symbols.
    """

    def __init__(self, program: BoundProgram, sizes: Sizes, traced_sizes: Sizes) -> None:
        plan = program.plan
        self.sizes: Mapping[str, int] = dict(sizes)
        self.traced_sizes: Mapping[str, int] = dict(traced_sizes)
        ordered = sorted(plan.buffers, key=lambda b: _ORDER[b.kind])
        buffers = [sized_buffer(buffer, i, self.sizes) for i, buffer in enumerate(ordered)]
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.read = [s for s in buffers if s.kind in (BufferKind.INPUT, BufferKind.CONSTANT)]
        self.by_index = buffers
        self.temporaries = [s for s in buffers if s.kind is BufferKind.TEMPORARY]
        self.arena_bytes = plan.arena_bytes.evaluate(self.sizes)
        self._check_arena()
        self.results = [
            self._result(output, kind)
            for output, kind in zip(plan.outputs, program.captured.graph.output_types, strict=True)
        ]
        self.made = [self._output_buffer(s) for s in buffers if s.kind is BufferKind.OUTPUT]
        self.table = PointerTable(
            [
                tuple(self.buffers[name] for name in step.buffers)
                for step in plan.steps
                if isinstance(step, Launch)
            ]
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

    def _output_buffer(self, buffer: SizedBuffer) -> OutputBuffer:
        views = [r.view for r in self.results if r.view is not None and r.view.buffer is buffer]
        whole = len(views) == 1 and views[0].offset == 0 and views[0].dtype is buffer.dtype
        if whole and views[0].span_elems() == buffer.size_elems:
            return OutputBuffer(buffer, views[0].shape, views[0].strides)
        return OutputBuffer(buffer, (buffer.size_elems,), (1,))


_ORDER = {
    BufferKind.INPUT: 0,
    BufferKind.CONSTANT: 0,
    BufferKind.OUTPUT: 1,
    BufferKind.EXTERN: 2,
    BufferKind.TEMPORARY: 3,
}
