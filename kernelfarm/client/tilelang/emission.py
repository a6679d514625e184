"""A kernel that is being written: its lines, names and lanes, and its accesses of memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kernelfarm.client.tilelang.expressions import (
    Expressions,
    Value,
    binary,
    converted,
    whole,
)
from kernelfarm.client.tilelang.program import Buffer, Let, Tensor, Tile
from kernelfarm.client.tilelang.syntax import refuse
from kernelfarm.client.tilelang.tiles import LaneBlock, expanded, padded, shape_text, tile_name
from kernelfarm.dtypes import DType
from kernelfarm.errors import TileProgramError

MAX_I32: Final = (1 << 31) - 1
MAX_SIZE: Final = MAX_I32 - (1 << 16)
"""The largest value of a size: what rounds it up to whole blocks still fits 32 bits."""
_INDENT: Final = "    "
# The axes of a block of one element, which is no scalar.
_ONE_ELEMENT: Final = frozenset({-1})


def pointer_name(tensor: Tensor) -> str:
    """The parameter with a tensor's address."""
    return f"{tensor.name}_ptr"


class Emission:
    """Writes lines; `names` are the numbers that expressions may name, `lanes` those of now."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers = buffers
        self.lines: list[str] = []
        self.names: dict[str, Value] = {}
        self.lanes = LaneBlock(())
        self._axes: dict[str, int] = {}
        self._depth = 1
        self._counter = 0
        self._expressions = Expressions(self.names, self._element)

    def emit(self, line: str) -> None:
        """Adds a line."""
        self.lines.append(_INDENT * self._depth + line)

    def new_name(self, stem: str) -> str:
        """A name that the kernel does not have yet."""
        self._counter += 1
        return f"{stem}_{self._counter}"

    def value(self, node: ast.expr) -> Value:
        """An expression as text.

        Raises:
            TileProgramError: it uses what is not accepted.
        """
        return self._expressions.value(node)

    def let(self, statement: Let) -> None:
        """Names a number."""
        value = self.value(statement.value)
        if not value.is_literal:
            name = self.new_name(statement.name)
            self.emit(f"{name} = {value.text}")
            dtype, low, high = value.dtype, value.low, value.high
            value = Value(name, dtype, low, high, value.axes, truth=value.truth)
        self.names[statement.name] = value

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Indents the lines of a loop or branch, whose names end with it."""
        outer = dict(self.names)
        self._depth += 1
        began = len(self.lines)
        yield
        if len(self.lines) == began:
            self.emit("pass")
        self._depth -= 1
        self._restore(outer)

    @contextmanager
    def over(self, extents: Sequence[int], names: Sequence[str] = ()) -> Iterator[list[Value]]:
        """Makes the lanes of a statement, and gives their numbers along each axis."""
        outer = dict(self.names)
        self.lanes = LaneBlock(tuple(extents))
        numbers = [self._number(axis, extent) for axis, extent in enumerate(extents)]
        self.names.update(zip(names, numbers, strict=False))
        self._axes = {name: axis for axis, name in enumerate(names)}
        yield numbers
        self._axes = {}
        self.lanes = LaneBlock(())
        self._restore(outer)

    def _number(self, axis: int, extent: int) -> Value:
        """The lanes' numbers along an axis."""
        if extent == 1:
            return whole(0)
        name = self.new_name("lane")
        self.emit(f"{name} = {self.lanes.range_text(axis)}")
        return Value(name, DType.I32, 0, extent - 1, frozenset({axis}))

    def _restore(self, names: Mapping[str, Value]) -> None:
        self.names.clear()
        self.names.update(names)

    def tile_axes(self, tile: Tile, indices: Sequence[ast.expr], node: ast.AST) -> list[int | None]:
        """The lanes' axis of each axis of a tile, None for one of a single element."""
        axes: list[int | None] = []
        for extent, index in zip(tile.shape, indices, strict=True):
            axis = self._axes.get(index.id) if isinstance(index, ast.Name) else None
            if extent == 1:
                is_lane = axis is not None and self.lanes.extents[axis] == 1 and axis not in axes
                axes.append(axis if is_lane else None)
                continue
            if axis is None or self.lanes.extents[axis] != extent or axis in axes:
                refuse(
                    node,
                    f"an element of the tile {tile.name} other than the lane's own, or a loop over"
                    f" a part of its {extent}",
                )
            axes.append(axis)
        return axes

    def load(self, tensor: Tensor, indices: Sequence[Value]) -> Value:
        """Elements of a tensor, zero outside of it."""
        pointer, masks, axes = self._access(tensor, indices)
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        return Value(f"tl.load({pointer}{mask})", tensor.dtype, axes=axes)

    def store(
        self,
        tensor: Tensor,
        indices: Sequence[Value],
        value: Value,
        conditions: Sequence[Value],
        *,
        is_atomic: bool = False,
    ) -> None:
        """Stores a value for each lane under conditions, or adds it.

        Raises:
            TileProgramError: several lanes store one element.
        """
        pointer, masks, axes = self._access(tensor, indices)
        wide = self.lanes.wide_axes
        if is_atomic and axes != wide:
            pointer = f"tl.broadcast_to({pointer}, {shape_text(self.lanes.shape)})"
        elif axes != wide:
            raise TileProgramError(
                f"several lanes that store one element of {tensor.name} are not accepted"
            )
        masks = [*masks, *(condition.text for condition in conditions)]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        text = self.lanes.filled(value, tensor.dtype)
        if is_atomic:
            self.emit(f'tl.atomic_add({pointer}, {text}{mask}, sem="relaxed")')
        else:
            self.emit(f"tl.store({pointer}, {text}{mask})")

    def _element(self, name: str, indices: Sequence[ast.expr], node: ast.AST) -> Value:
        """An element of a tensor or tile for each lane."""
        buffer = self._buffers.get(name)
        if buffer is None or len(indices) != len(buffer.shape):
            refuse(node, "an element of an unknown buffer, or of another rank")
        if isinstance(buffer, Tensor):
            return self.load(buffer, [self.value(index) for index in indices])
        axes = self.tile_axes(buffer, indices, node)
        named = [axis for axis in axes if axis is not None]
        text, rank = tile_name(buffer), len(self.lanes.extents)
        if None in axes:
            both = zip(buffer.shape, axes, strict=True)
            shape = [padded(extent) for extent, axis in both if axis is not None]
            text = f"tl.reshape({text}, {shape_text(shape or [1] * max(rank, 1))})"
            if not shape:
                return Value(text, buffer.dtype, axes=_ONE_ELEMENT)
        if named != sorted(named):
            order = [named.index(axis) for axis in sorted(named)]
            text = f"tl.permute({text}, {shape_text(order)})"
        text = expanded(text, sorted(named), rank)
        return Value(text, buffer.dtype, axes=frozenset(named))

    def _access(
        self, tensor: Tensor, indices: Sequence[Value]
    ) -> tuple[str, list[str], frozenset[int]]:
        """A pointer for each lane, the conditions under which it is inside, and its axes."""
        masks: list[str] = []
        every = frozenset[int]().union(*(index.axes for index in indices))
        axes = every & self.lanes.wide_axes
        for axis, lanes in enumerate(self.lanes.extents):
            if padded(lanes) != lanes:
                masks.append(f"({self.lanes.range_text(axis)} < {lanes})")
        offset: Value = whole(0)
        bound = whole(0)
        strides = [self.value(stride) for stride in tensor.strides]
        for index, stride, extent in zip(indices, strides, tensor.shape, strict=True):
            masks += self._inside(index, self.value(extent))
            bound = binary(extent, "+", bound, binary(extent, "*", index, stride))
        is_long = bound.high is None or bound.high > MAX_I32
        for index, stride, extent in zip(indices, strides, tensor.shape, strict=True):
            wide = converted(index, DType.I64) if is_long and not index.is_literal else index
            offset = binary(extent, "+", offset, binary(extent, "*", wide, stride))
        name = pointer_name(tensor)
        pointer = name if offset.text == "0" else f"{name} + {offset.text}"
        if not self.lanes.extents:
            return pointer, masks, axes
        if not every:  # a block of one element
            pointer = f"{pointer} + {self._zeros()}"
        return pointer, masks, axes

    def _zeros(self) -> str:
        return f"tl.zeros({shape_text([1] * len(self.lanes.extents))}, tl.int32)"

    def _inside(self, index: Value, extent: Value) -> Iterator[str]:
        if index.low is None or index.low < 0:
            yield f"({index.text} >= 0)"
        is_below = index.high is not None and extent.low is not None and index.high < extent.low
        if not is_below:
            yield f"({index.text} < {extent.text})"
