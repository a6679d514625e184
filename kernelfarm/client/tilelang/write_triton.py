"""Writes a tile program as a kernel in Triton's language, of which a farm compiles a closed subset.

Each tile is a variable whose block has sides that are powers of two; what lies beyond the tile is
never stored, and is masked where it would count. A loop over T.Parallel becomes statements on
whole blocks, because its iterations are independent.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kernelfarm.client.tilelang.emission import MAX_SIZE, Emission, pointer_name
from kernelfarm.client.tilelang.expressions import TRITON_DTYPES, Value, binary, converted, whole
from kernelfarm.client.tilelang.parallel import ParallelWriter
from kernelfarm.client.tilelang.program import (
    Atomic,
    Branch,
    Buffer,
    Copy,
    Fill,
    Let,
    Loop,
    Parallel,
    Product,
    Reduce,
    Region,
    Scan,
    Statement,
    Tensor,
    Tile,
    TileProgram,
)
from kernelfarm.client.tilelang.tiles import (
    LaneBlock,
    block_shape,
    expanded,
    is_whole,
    padded,
    shape_text,
    tile_name,
    tiles_to_begin,
)
from kernelfarm.dtypes import DType
from kernelfarm.errors import TileProgramError

_LANE_NAME: Final = re.compile(r"\blane_\d+\b")
_LANE_LINE: Final = re.compile(r"\s*(lane_\d+) = ")
# The value that changes no result, for elements beyond the tile.
_NEUTRAL: Final[Mapping[str, str]] = {
    "sum": "0",
    "abssum": "0",
    "absmax": "0",
    "max": 'float("-inf")',
    "min": 'float("inf")',
}
_REDUCTIONS: Final[Mapping[str, str]] = {
    "sum": "tl.sum",
    "abssum": "tl.sum",
    "absmax": "tl.max",
    "max": "tl.max",
    "min": "tl.min",
}
_JOINS: Final[Mapping[str, str]] = {
    "sum": "{0} + {1}",
    "abssum": "{0} + {1}",
    "absmax": "tl.maximum({0}, {1})",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
}


def write_triton(program: TileProgram) -> str:
    """The kernel's source, a function of the program's tensors, then of its sizes.

    Raises:
        TileProgramError: a statement is outside of what is accepted.
    """
    return ast.unparse(ast.parse(_Writer(program).text()))


def size_name(size: str) -> str:
    """The parameter with a size."""
    return f"{size}_size"


class _Writer:
    def __init__(self, program: TileProgram) -> None:
        self._program = program
        buffers: dict[str, Buffer] = {tensor.name: tensor for tensor in program.params}
        buffers |= {tile.name: tile for tile in program.tiles}
        self._out = Emission(buffers)
        self._parallel = ParallelWriter(self._out)
        self._writers: dict[type[Statement], Callable[[Any], None]] = {
            Fill: self._fill,
            Copy: self._copy,
            Atomic: self._atomic,
            Product: self._product,
            Reduce: self._reduce,
            Scan: self._scan,
            Let: self._out.let,
            Branch: self._branch,
            Loop: self._loop,
            Parallel: self._parallel.write,
        }

    def text(self) -> str:
        program, out = self._program, self._out
        params = [pointer_name(t) for t in program.params] + [size_name(s) for s in program.sizes]
        for size in program.sizes:
            out.names[size] = Value(size_name(size), DType.I32, 0, MAX_SIZE)
        for axis, (name, count) in enumerate(program.grid):
            last = out.value(count).high
            out.emit(f"{name}_block = tl.program_id({axis})")
            high = None if last is None else last - 1
            out.names[name] = Value(f"{name}_block", DType.I32, 0, high)
        for tile in tiles_to_begin(program.tiles, program.body):
            shape = shape_text(block_shape(tile.shape))
            out.emit(f"{tile_name(tile)} = tl.zeros({shape}, {TRITON_DTYPES[tile.dtype]})")
        self._block(program.body)
        lines = _without_unused_ranges(out.lines)
        return "\n".join([f"def {program.name}({', '.join(params)}):", *lines])

    def _block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self._writers[type(statement)](statement)

    def _branch(self, statement: Branch) -> None:
        out = self._out
        condition = out.value(statement.condition)
        if condition.truth is not None:
            self._block(statement.then if condition.truth else statement.otherwise)
            return
        out.emit(f"if {condition.text}:")
        with out.deeper():
            self._block(statement.then)
        if statement.otherwise:
            out.emit("else:")
            with out.deeper():
                self._block(statement.otherwise)

    def _loop(self, statement: Loop) -> None:
        out = self._out
        begin, end = out.value(statement.begin), out.value(statement.end)
        name = out.new_name(statement.name)
        stages = f", num_stages={statement.stages}" if statement.stages else ""
        out.emit(f"for {name} in tl.range({begin.text}, {end.text}{stages}):")
        with out.deeper():
            high = None if end.high is None else end.high - 1
            out.names[statement.name] = Value(name, DType.I32, begin.low, high)
            self._block(statement.body)

    def _fill(self, statement: Fill) -> None:
        target = statement.target
        value = self._out.value(statement.value)
        with self._out.over(target.extents) as numbers:
            if isinstance(target.buffer, Tile):
                self._check_whole(target)
                filled = self._out.lanes.filled(value, target.buffer.dtype)
                self._out.emit(f"{tile_name(target.buffer)} = {filled}")
            else:
                self._out.store(target.buffer, self._indices(target, numbers), value, ())

    def _copy(self, statement: Copy) -> None:
        source, target = statement.source, statement.target
        if isinstance(target.buffer, Tensor):
            self._store_region(source, target, is_atomic=False)
            return
        tile = target.buffer
        self._check_whole(target)
        self._check_same_extents(source, target)
        name, dtype = tile_name(tile), tile.dtype
        if isinstance(source.buffer, Tile):
            self._check_whole(source)
            value = Value(tile_name(source.buffer), source.buffer.dtype)
            text = converted(value, dtype).text
            if source.buffer.shape != tile.shape:
                text = f"tl.reshape({text}, {shape_text(block_shape(tile.shape))})"
            self._out.emit(f"{name} = {text}")
            return
        with self._out.over(tile.shape) as numbers:
            wide = iter(n for n, extent in zip(numbers, tile.shape, strict=True) if extent > 1)
            own = [next(wide) if extent > 1 else whole(0) for extent in source.extents]
            loaded = self._out.load(source.buffer, self._indices(source, own))
            self._out.emit(f"{name} = {self._out.lanes.filled(loaded, dtype)}")

    def _store_region(self, source: Region, target: Region, *, is_atomic: bool) -> None:
        """Copies or adds a region to one of a tensor."""
        if not isinstance(target.buffer, Tensor):
            raise TileProgramError("an atomic addition to a tile is not accepted")
        self._check_same_extents(source, target)
        if isinstance(source.buffer, Tensor):
            with self._out.over(target.extents) as numbers:
                wide = iter(n for n, e in zip(numbers, target.extents, strict=True) if e > 1)
                own = [next(wide) if extent > 1 else whole(0) for extent in source.extents]
                value = self._out.load(source.buffer, self._indices(source, own))
                indices = self._indices(target, numbers)
                self._out.store(target.buffer, indices, value, (), is_atomic=is_atomic)
            return
        self._check_whole(source)
        tile = source.buffer
        with self._out.over(tile.shape) as numbers:
            wide = iter(n for n, extent in zip(numbers, tile.shape, strict=True) if extent > 1)
            own = [next(wide) if extent > 1 else whole(0) for extent in target.extents]
            value = Value(tile_name(tile), tile.dtype, axes=self._out.lanes.wide_axes)
            indices = self._indices(target, own)
            self._out.store(target.buffer, indices, value, (), is_atomic=is_atomic)

    def _atomic(self, statement: Atomic) -> None:
        self._store_region(statement.source, statement.target, is_atomic=True)

    def _indices(self, region: Region, numbers: Sequence[Value]) -> list[Value]:
        """The indices of a region's elements for each lane."""
        return [
            binary(start, "+", self._out.value(start), number)
            for start, number in zip(region.starts, numbers, strict=True)
        ]

    def _product(self, statement: Product) -> None:
        left_axis = 0 if statement.is_left_transposed else 1
        right_axis = 1 if statement.is_right_transposed else 0
        left = self._side(statement.left, left_axis, is_transposed=statement.is_left_transposed)
        right = self._side(statement.right, right_axis, is_transposed=statement.is_right_transposed)
        target = statement.target
        name = self._matrix(target)
        dtype = TRITON_DTYPES[target.buffer.dtype]
        shape = shape_text(block_shape(target.extents))
        added = f"tl.zeros({shape}, {dtype})" if statement.replaces else name
        exact = ', input_precision="ieee"' if statement.left.buffer.dtype is DType.F32 else ""
        self._out.emit(f"{name} = tl.dot({left}, {right}, {added}{exact}, out_dtype={dtype})")

    def _side(self, region: Region, summed_axis: int, *, is_transposed: bool) -> str:
        """A factor, zero beyond the tile along the axis that is summed."""
        text = self._masked(self._matrix(region), region, [summed_axis], "0")
        return f"tl.trans({text})" if is_transposed else text

    def _matrix(self, region: Region) -> str:
        self._check_whole(region)
        if len(region.extents) != 2 or not isinstance(region.buffer, Tile):
            raise TileProgramError("T.gemm of tiles that are no matrices is not accepted")
        return tile_name(region.buffer)

    def _reduce(self, statement: Reduce) -> None:
        source, target, kind = statement.source, statement.target, statement.kind
        self._check_whole(source)
        self._check_whole(target)
        if kind not in _REDUCTIONS:
            raise TileProgramError(
                f"T.reduce of kind {kind!r} is not accepted; expected one of"
                f" {', '.join(_REDUCTIONS)}"
            )
        tile, result = source.buffer, target.buffer
        assert isinstance(tile, Tile) and isinstance(result, Tile)
        axis, rank = statement.axis % len(tile.shape), len(tile.shape)
        left = (*tile.shape[:axis], *tile.shape[axis + 1 :])
        if result.shape not in (left or (1,), (*tile.shape[:axis], 1, *tile.shape[axis + 1 :])):
            raise TileProgramError(
                f"a reduction of axis {axis} of {tile.shape} into {result.shape} is not accepted"
            )
        wide = DType.F32 if result.dtype in (DType.F16, DType.BF16) else result.dtype
        text = converted(Value(tile_name(tile), tile.dtype), wide).text
        if kind.startswith("abs"):
            text = f"tl.abs({text})"
        text = self._masked(text, source, [axis], _NEUTRAL[kind], of_ints=not wide.is_float)
        text = f"{_REDUCTIONS[kind]}({text}, {axis})"
        text = converted(Value(text, wide), result.dtype).text
        if rank == 1:
            text = f"tl.full([1], {text}, {TRITON_DTYPES[result.dtype]})"
        elif len(result.shape) == rank:
            text = expanded(f"({text})", [a for a in range(rank) if a != axis], rank)
        name = tile_name(result)
        self._out.emit(
            f"{name} = {text if statement.replaces else _JOINS[kind].format(name, text)}"
        )

    def _scan(self, statement: Scan) -> None:
        source, target = statement.source, statement.target
        self._check_whole(source)
        self._check_whole(target)
        tile, result = source.buffer, target.buffer
        assert isinstance(tile, Tile) and isinstance(result, Tile)
        if tile.shape != result.shape:
            raise TileProgramError("running sums into a tile of another shape are not accepted")
        axis = statement.axis % len(tile.shape)
        text = self._masked(tile_name(tile), source, [axis], "0")
        text = f"tl.cumsum({text}, {axis}, reverse={statement.reverse})"
        self._out.emit(f"{tile_name(result)} = {text}.to({TRITON_DTYPES[result.dtype]})")

    def _masked(
        self, text: str, region: Region, axes: Sequence[int], value: str, *, of_ints: bool = False
    ) -> str:
        """A tile whose elements beyond its extent along some axes are a value."""
        for axis in axes:
            extent = region.extents[axis]
            if padded(extent) == extent:
                continue
            if of_ints and value != "0":
                raise TileProgramError(
                    f"the largest or least of {extent} whole numbers is not accepted; expected a"
                    " power of two of them"
                )
            lanes = LaneBlock(region.extents)
            text = f"tl.where({lanes.range_text(axis)} < {extent}, {text}, {value})"
        return text

    def _check_whole(self, region: Region) -> None:
        if not is_whole(region):
            raise TileProgramError(
                f"a part of the tile {region.buffer.name} as an operand is not accepted; expected"
                " all of it"
            )

    def _check_same_extents(self, source: Region, target: Region) -> None:
        if _wide(source.extents) != _wide(target.extents):
            raise TileProgramError(
                f"a copy of {source.extents} of {source.buffer.name} to {target.extents} of"
                f" {target.buffer.name} is not accepted; expected equal extents"
            )


def _without_unused_ranges(lines: Sequence[str]) -> list[str]:
    """The lines without ranges of lanes that no other line names."""
    used = Counter(name for line in lines for name in _LANE_NAME.findall(line))
    return [line for line in lines if not (name := _LANE_LINE.match(line)) or used[name[1]] > 1]


def _wide(extents: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for extent in extents if extent > 1)
