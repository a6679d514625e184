"""Tiles on the stack for accesses whose neighbours lie along the rows of a tile, not its lanes.

A loop over lanes would gather or scatter the elements of such an access one by one, from as many
cache lines. Instead, whole vectors move between memory and a tile on the stack, and squares of
elements are transposed in registers between them. The loop over lanes then reads or writes the
tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.lane_axis import TILE_LANES
from codegen_svc.emitters.llvm.text import I64, Value, integer
from codegen_svc.emitters.llvm.transposition import transposed
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.values import Scope, from_memory
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Axis, Load, Store

# The vectors of a larger square do not fit the registers.
MAX_SQUARE_SIDE: Final = 16

ROW = "row"
LANE = "lane"

Corner = tuple[Value, Value]
"""A number of rows and one of lanes."""


class TurnedTile:
    """The tile of one load or store of the schedule's turned ones."""

    def __init__(self, context: UnitContext, number: int) -> None:
        access, schedule = context.kernel.body[number], context.schedule
        assert isinstance(access, Load | Store) and schedule.lane is not None
        self._context, self._fn = context, context.fn
        self._access = access
        self._axes = (schedule.rows[-1], schedule.lane)
        self._dtype = context.kernel.param(access.param).dtype
        self._side = _square_side(self._dtype, context.vector_bits, self._axes)
        rows = schedule.tile_rows
        self._array = self._fn.alloca(
            f"{access.param}_tile", memory_type(self._dtype), rows * TILE_LANES
        )

    def value(self, scope: Scope) -> Value:
        """The element of the scope's row and lane, loaded from the tile."""
        raw = self._fn.load(memory_type(self._dtype), self.address(scope), self._bytes)
        return from_memory(self._fn, raw, self._dtype)

    def address(self, scope: Scope) -> Value:
        """The address in the tile of the scope's row and lane."""
        return self._at(scope.symbols[ROW], scope.symbols[LANE])

    def fill(self, scope: Scope, first: Corner, size: Corner) -> None:
        """Writes the copy from memory to the tile; `first` and `size` are of rows and lanes."""
        self._copy(scope, first, size, self._square_to_tile, self._element_to_tile)

    def drain(self, scope: Scope, first: Corner, size: Corner) -> None:
        """Writes the copy from the tile to memory."""
        self._copy(scope, first, size, self._square_to_memory, self._element_to_memory)

    @property
    def _bytes(self) -> int:
        return self._dtype.itemsize_bytes

    def _at(self, row: Value, lane: Value) -> Value:
        flat = self._fn.op("mul nsw", row, integer(TILE_LANES, I64), wish="tile_row")
        at = self._fn.op("add nsw", flat, lane, wish="tile_at")
        return self._fn.element(memory_type(self._dtype), self._array, at)

    def _copy(
        self, scope: Scope, first: Corner, size: Corner, square: _Move, element: _Move
    ) -> None:
        """Whole squares, then the rows and lanes that are left at the borders."""
        fn, side = self._fn, integer(self._side, I64)
        squares = [fn.op("udiv", count, side, wish="squares") for count in size]
        whole = [fn.op("mul nsw", count, side, wish="whole") for count in squares]
        (rows, lanes), (row_squares, lane_squares), (end_row, end_lane) = size, squares, whole

        def at(row: Value, lane: Value, move: _Move) -> None:
            axes = {
                axis.name: fn.op("add nsw", start, offset, wish=f"{axis.name}.at")
                for axis, start, offset in zip(self._axes, first, (row, lane), strict=True)
            }
            move(scope.inner(**axes), row, lane)

        def at_square(row: Value, lane: Value) -> None:
            row, lane = (fn.op("mul nsw", number, side, wish="corner") for number in (row, lane))
            at(row, lane, square)

        def at_element(row: Value, lane: Value) -> None:
            at(row, lane, element)

        self._over((ZERO_I64, row_squares), (ZERO_I64, lane_squares), at_square)
        row_axis, lane_axis = self._axes
        if not _is_multiple(row_axis, self._side):
            self._over((end_row, rows), (ZERO_I64, lanes), at_element)
        if not _is_multiple(lane_axis, self._side):
            self._over((ZERO_I64, end_row), (end_lane, lanes), at_element)

    def _over(
        self,
        rows: tuple[Value, Value],
        lanes: tuple[Value, Value],
        body: Callable[[Value, Value], None],
    ) -> None:
        """Loops with the rows inside: they share cache lines of the memory."""

        def of_lane(lane: Value) -> None:
            write_loop(self._fn, ROW, rows, lambda row: body(row, lane), is_inner=False)

        write_loop(self._fn, LANE, lanes, of_lane, is_inner=False)

    def _square_to_tile(self, scope: Scope, row: Value, lane: Value) -> None:
        self._store_vectors(self._tile_rows(row, lane), self._turned(self._memory_runs(scope)))

    def _square_to_memory(self, scope: Scope, row: Value, lane: Value) -> None:
        self._store_vectors(self._memory_runs(scope), self._turned(self._tile_rows(row, lane)))

    def _turned(self, addresses: Sequence[Value]) -> list[Value]:
        kind = f"<{self._side} x i{8 * self._bytes}>"
        vectors = [self._fn.load(kind, at, self._bytes, wish="run") for at in addresses]
        return transposed(self._fn, vectors, 8 * self._bytes)

    def _store_vectors(self, addresses: Sequence[Value], vectors: Sequence[Value]) -> None:
        for at, vector in zip(addresses, vectors, strict=True):
            self._fn.store(vector, at, self._bytes)

    def _tile_rows(self, row: Value, lane: Value) -> list[Value]:
        corner = self._at(row, lane)
        return self._spaced(corner, integer(TILE_LANES, I64))

    def _memory_runs(self, scope: Scope) -> list[Value]:
        """The address of each lane's run of elements along the rows."""
        distance = self._access.index.coefficient_of(self._axes[1].name)
        assert distance is not None  # the schedule turns only such accesses
        return self._spaced(self._memory(scope), self._context.index.write(distance, scope.symbols))

    def _spaced(self, start: Value, distance: Value) -> list[Value]:
        """`side` addresses, so many elements apart."""
        kind, found = memory_type(self._dtype), [start]
        for _ in range(self._side - 1):
            found.append(self._fn.element(kind, found[-1], distance))
        return found

    def _memory(self, scope: Scope) -> Value:
        at = self._context.index.write(self._access.index, scope.symbols)
        buffer = self._context.buffers[self._access.param]
        return self._fn.element(memory_type(self._dtype), buffer, at)

    def _element_to_tile(self, scope: Scope, row: Value, lane: Value) -> None:
        self._move_element(self._memory(scope), self._at(row, lane))

    def _element_to_memory(self, scope: Scope, row: Value, lane: Value) -> None:
        self._move_element(self._at(row, lane), self._memory(scope))

    def _move_element(self, source: Value, target: Value) -> None:
        raw = self._fn.load(memory_type(self._dtype), source, self._bytes)
        self._fn.store(raw, target, self._bytes)


_Move = Callable[[Scope, Value, Value], None]
"""Copies a square or an element; the scope has its place in memory, the rest that in the tile."""


def _square_side(dtype: DType, vector_bits: int, axes: tuple[Axis, Axis]) -> int:
    """The side of a square: a vector's elements, or fewer if an axis is shorter than these."""
    side = min(MAX_SQUARE_SIDE, vector_bits // (8 * dtype.itemsize_bytes))
    for axis in axes:
        if axis.extent.is_constant:
            side = min(side, 1 << (axis.extent.constant.bit_length() - 1))
    return side


def _is_multiple(axis: Axis, side: int) -> bool:
    return axis.extent.is_constant and axis.extent.constant % side == 0
