"""Writes a tile program as a kernel in Triton's language, of which a farm compiles a closed subset.

Each tile is a variable whose block has sides that are powers of two; what lies beyond the tile is
never stored, and is masked where it would count. A loop over T.Parallel becomes statements on
whole blocks, because its iterations are independent.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kernelfarm.client.tilelang.expressions import (
    TRITON_DTYPES,
    Expressions,
    Value,
    binary,
    converted,
    refuse,
    whole,
)
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
    Store,
    Tensor,
    Tile,
    TileProgram,
)
from kernelfarm.client.tilelang.tiles import (
    Lanes,
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

_INDENT: Final = "    "
_LANE_NAME: Final = re.compile(r"\blane_\d+\b")
_LANE_LINE: Final = re.compile(r"\s*(lane_\d+) = ")
_MAX_I32: Final = (1 << 31) - 1
# The axes of a block of one element, which is no scalar.
_ONE_ELEMENT: Final = frozenset({-1})
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


def pointer_name(tensor: Tensor) -> str:
    """The parameter with a tensor's address."""
    return f"{tensor.name}_ptr"


def size_name(size: str) -> str:
    """The parameter with a size."""
    return f"{size}_size"


class _Writer:
    def __init__(self, program: TileProgram) -> None:
        self._program = program
        self._buffers: dict[str, Buffer] = {b.name: b for b in (*program.params, *program.tiles)}
        self._lines: list[str] = []
        self._depth = 1
        self._counter = 0
        self._names: dict[str, Value] = {}
        self._lanes = Lanes(())
        self._axes: dict[str, int] = {}
        self._expressions = Expressions(self._names, self._element)

    def text(self) -> str:
        program = self._program
        params = [pointer_name(t) for t in program.params] + [size_name(s) for s in program.sizes]
        for size in program.sizes:
            self._names[size] = Value(size_name(size), DType.I32, 0, _MAX_I32)
        for axis, (name, count) in enumerate(program.grid):
            last = self._value(count).high
            self._emit(f"{name}_block = tl.program_id({axis})")
            high = None if last is None else last - 1
            self._names[name] = Value(f"{name}_block", DType.I32, 0, high)
        for tile in tiles_to_begin(program.tiles, program.body):
            shape = shape_text(block_shape(tile.shape))
            self._emit(f"{tile_name(tile)} = tl.zeros({shape}, {TRITON_DTYPES[tile.dtype]})")
        self._block(program.body)
        lines = _without_unused_ranges(self._lines)
        return "\n".join([f"def {program.name}({', '.join(params)}):", *lines])

    def _emit(self, line: str) -> None:
        self._lines.append(_INDENT * self._depth + line)

    def _new_name(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}_{self._counter}"

    def _value(self, node: ast.expr) -> Value:
        return self._expressions.value(node)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        began = len(self._lines)
        yield
        if len(self._lines) == began:
            self._emit("pass")
        self._depth -= 1

    @contextmanager
    def _over(self, extents: Sequence[int], names: Sequence[str] = ()) -> Iterator[list[Value]]:
        """Makes the lanes of a statement, and gives their numbers along each axis."""
        outer = dict(self._names)
        self._lanes = Lanes(tuple(extents))
        numbers = []
        for axis, extent in enumerate(extents):
            number = whole(0)
            if extent > 1:
                name = self._new_name("lane")
                self._emit(f"{name} = {self._lanes.range_text(axis)}")
                number = Value(name, DType.I32, 0, extent - 1, frozenset({axis}))
            numbers.append(number)
        for axis, name in enumerate(names):
            self._names[name] = numbers[axis]
            self._axes[name] = axis
        yield numbers
        for name in names:
            del self._axes[name]
        self._names.clear()
        self._names.update(outer)
        self._lanes = Lanes(())

    # Statements of a block.

    def _block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Fill():
                self._fill(statement)
            case Copy():
                self._copy(statement)
            case Atomic(source=source, target=target):
                self._store_region(source, target, is_atomic=True)
            case Product():
                self._product(statement)
            case Reduce():
                self._reduce(statement)
            case Scan():
                self._scan(statement)
            case Let():
                self._let(statement)
            case Branch():
                self._branch(statement)
            case Loop():
                self._loop(statement)
            case Parallel(axes=axes, body=body):
                names, extents = [name for name, _ in axes], [extent for _, extent in axes]
                with self._over(extents, names):
                    self._lane_block(body, ())

    def _let(self, statement: Let) -> None:
        value = self._value(statement.value)
        if not value.is_literal:
            name = self._new_name(statement.name)
            self._emit(f"{name} = {value.text}")
            dtype, low, high = value.dtype, value.low, value.high
            value = Value(name, dtype, low, high, value.axes, truth=value.truth)
        self._names[statement.name] = value

    def _branch(self, statement: Branch) -> None:
        condition = self._value(statement.condition)
        if condition.truth is not None:
            self._block(statement.then if condition.truth else statement.otherwise)
            return
        self._emit(f"if {condition.text}:")
        self._inner_block(statement.then)
        if statement.otherwise:
            self._emit("else:")
            self._inner_block(statement.otherwise)

    def _inner_block(self, body: Sequence[Statement]) -> None:
        outer = dict(self._names)
        with self._deeper():
            self._block(body)
        self._names.clear()
        self._names.update(outer)

    def _loop(self, statement: Loop) -> None:
        begin, end = self._value(statement.begin), self._value(statement.end)
        name = self._new_name(statement.name)
        stages = f", num_stages={statement.stages}" if statement.stages else ""
        self._emit(f"for {name} in tl.range({begin.text}, {end.text}{stages}):")
        outer = self._names.get(statement.name)
        high = None if end.high is None else end.high - 1
        self._names[statement.name] = Value(name, DType.I32, begin.low, high)
        self._inner_block(statement.body)
        if outer is None:
            del self._names[statement.name]
        else:
            self._names[statement.name] = outer

    def _fill(self, statement: Fill) -> None:
        target = statement.target
        value = self._value(statement.value)
        with self._over(target.extents) as numbers:
            if isinstance(target.buffer, Tile):
                self._check_whole(target)
                filled = self._lanes.filled(value, target.buffer.dtype)
                self._emit(f"{tile_name(target.buffer)} = {filled}")
            else:
                self._store_tensor(target.buffer, self._indices(target, numbers), value, ())

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
            self._emit(f"{name} = {text}")
            return
        with self._over(tile.shape) as numbers:
            wide = iter(n for n, extent in zip(numbers, tile.shape, strict=True) if extent > 1)
            own = [next(wide) if extent > 1 else whole(0) for extent in source.extents]
            loaded = self._load(source.buffer, self._indices(source, own))
            self._emit(f"{name} = {self._lanes.filled(loaded, dtype)}")

    def _store_region(self, source: Region, target: Region, *, is_atomic: bool) -> None:
        """Copies or adds a region to one of a tensor."""
        if not isinstance(target.buffer, Tensor):
            raise TileProgramError("an atomic addition to a tile is not accepted")
        self._check_same_extents(source, target)
        if isinstance(source.buffer, Tensor):
            with self._over(target.extents) as numbers:
                wide = iter(n for n, e in zip(numbers, target.extents, strict=True) if e > 1)
                own = [next(wide) if extent > 1 else whole(0) for extent in source.extents]
                value = self._load(source.buffer, self._indices(source, own))
                indices = self._indices(target, numbers)
                self._store_tensor(target.buffer, indices, value, (), is_atomic=is_atomic)
            return
        self._check_whole(source)
        tile = source.buffer
        with self._over(tile.shape) as numbers:
            wide = iter(n for n, extent in zip(numbers, tile.shape, strict=True) if extent > 1)
            own = [next(wide) if extent > 1 else whole(0) for extent in target.extents]
            value = Value(tile_name(tile), tile.dtype, axes=self._lanes.wide_axes)
            indices = self._indices(target, own)
            self._store_tensor(target.buffer, indices, value, (), is_atomic=is_atomic)

    def _product(self, statement: Product) -> None:
        sides = []
        for region, axis, transposed in (
            (statement.left, 0 if statement.is_left_transposed else 1, statement.is_left_transposed),
            (
                statement.right,
                1 if statement.is_right_transposed else 0,
                statement.is_right_transposed,
            ),
        ):
            text = self._matrix(region)
            text = self._masked(text, region, [axis], "0")
            sides.append(f"tl.trans({text})" if transposed else text)
        target = statement.target
        name = self._matrix(target)
        dtype = TRITON_DTYPES[target.buffer.dtype]
        shape = shape_text(block_shape(target.extents))
        added = f"tl.zeros({shape}, {dtype})" if statement.replaces else name
        exact = ', input_precision="ieee"' if statement.left.buffer.dtype is DType.F32 else ""
        self._emit(f"{name} = tl.dot({sides[0]}, {sides[1]}, {added}{exact}, out_dtype={dtype})")

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
        self._emit(f"{name} = {text if statement.replaces else _JOINS[kind].format(name, text)}")

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
        self._emit(f"{tile_name(result)} = {text}.to({TRITON_DTYPES[result.dtype]})")

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
            lanes = Lanes(region.extents)
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

    # Statements of lanes.

    def _lane_block(self, body: Sequence[Statement], conditions: tuple[Value, ...]) -> None:
        for statement in body:
            match statement:
                case Let():
                    self._let(statement)
                case Store():
                    self._store(statement, conditions)
                case Branch():
                    self._lane_branch(statement, conditions)

    def _lane_branch(self, statement: Branch, conditions: tuple[Value, ...]) -> None:
        condition = self._value(statement.condition)
        if condition.truth is not None:
            taken = statement.then if condition.truth else statement.otherwise
            self._lane_block(taken, conditions)
            return
        name = self._new_name("condition")
        self._emit(f"{name} = {condition.text}")
        holds = Value(name, DType.BOOL, axes=condition.axes)
        self._lane_block(statement.then, (*conditions, holds))
        if statement.otherwise:
            fails = Value(f"({name} == 0)", DType.BOOL, axes=condition.axes)
            self._lane_block(statement.otherwise, (*conditions, fails))

    def _store(self, statement: Store, conditions: tuple[Value, ...]) -> None:
        value = self._value(statement.value)
        if isinstance(statement.buffer, Tensor):
            indices = [self._value(index) for index in statement.indices]
            self._store_tensor(
                statement.buffer, indices, value, conditions, is_atomic=statement.is_atomic
            )
            return
        tile, node = statement.buffer, statement.value
        if statement.is_atomic:
            refuse(node, "an atomic addition to a tile")
        axes = self._tile_axes(tile, statement.indices, node)
        named = [axis for axis in axes if axis is not None]
        if frozenset(named) & self._lanes.wide_axes != self._lanes.wide_axes:
            refuse(node, f"several lanes that store one element of {tile.name}")
        text = self._lanes.filled(value, tile.dtype)
        if named != sorted(named):
            order = [named.index(axis) for axis in sorted(named)]
            kept = [self._lanes.shape[axis] for axis in sorted(named)]
            text = f"tl.reshape({text}, {shape_text(kept)})"
            text = f"tl.permute({text}, {shape_text(_inverse(order))})"
        shape = block_shape(tile.shape)
        if named != sorted(named) or self._lanes.shape != shape:
            text = f"tl.reshape({text}, {shape_text(shape)})"
        for condition in conditions:
            held = self._as_tile(condition, axes, named)
            text = f"tl.where({held}, {text}, {tile_name(tile)})"
        self._emit(f"{tile_name(tile)} = {text}")

    def _as_tile(
        self, condition: Value, axes: Sequence[int | None], named: Sequence[int]
    ) -> str:
        if named != sorted(named) or len(axes) != len(self._lanes.extents):
            raise TileProgramError(
                "a conditional store to a tile whose axes are not the lanes' is not accepted"
            )
        return condition.text

    def _element(self, name: str, indices: Sequence[ast.expr], node: ast.AST) -> Value:
        """An element of a tensor or tile for each lane."""
        buffer = self._buffers.get(name)
        if buffer is None or len(indices) != len(buffer.shape):
            refuse(node, "an element of an unknown buffer, or of another rank")
        if isinstance(buffer, Tensor):
            return self._load(buffer, [self._value(index) for index in indices])
        axes = self._tile_axes(buffer, indices, node)
        named = [axis for axis in axes if axis is not None]
        text, rank = tile_name(buffer), len(self._lanes.extents)
        if None in axes:
            shape = [padded(e) for e, axis in zip(buffer.shape, axes, strict=True) if axis is not None]
            text = f"tl.reshape({text}, {shape_text(shape or [1] * max(rank, 1))})"
            if not shape:
                return Value(text, buffer.dtype, axes=_ONE_ELEMENT)
        if named != sorted(named):
            order = [named.index(axis) for axis in sorted(named)]
            text = f"tl.permute({text}, {shape_text(order)})"
        text = expanded(text, sorted(named), rank)
        return Value(text, buffer.dtype, axes=frozenset(named))

    def _tile_axes(
        self, tile: Tile, indices: Sequence[ast.expr], node: ast.AST
    ) -> list[int | None]:
        """The lanes' axis of each axis of a tile, None for one of a single element."""
        axes: list[int | None] = []
        for extent, index in zip(tile.shape, indices, strict=True):
            axis = self._axes.get(index.id) if isinstance(index, ast.Name) else None
            if extent == 1:
                is_lane = axis is not None and self._lanes.extents[axis] == 1 and axis not in axes
                axes.append(axis if is_lane else None)
                continue
            if axis is None or self._lanes.extents[axis] != extent or axis in axes:
                refuse(
                    node,
                    f"an element of the tile {tile.name} other than the lane's own, or a loop over"
                    f" a part of its {extent}",
                )
            axes.append(axis)
        return axes

    # Accesses of tensors.

    def _indices(self, region: Region, numbers: Sequence[Value]) -> list[Value]:
        """The indices of a region's elements for each lane."""
        return [
            binary(start, "+", self._value(start), number)
            for start, number in zip(region.starts, numbers, strict=True)
        ]

    def _load(self, tensor: Tensor, indices: Sequence[Value]) -> Value:
        pointer, masks, axes = self._access(tensor, indices)
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        return Value(f"tl.load({pointer}{mask})", tensor.dtype, axes=axes)

    def _store_tensor(
        self,
        tensor: Tensor,
        indices: Sequence[Value],
        value: Value,
        conditions: Sequence[Value],
        *,
        is_atomic: bool = False,
    ) -> None:
        pointer, masks, axes = self._access(tensor, indices)
        wide = self._lanes.wide_axes
        if is_atomic and axes != wide:
            pointer = f"tl.broadcast_to({pointer}, {shape_text(self._lanes.shape)})"
        elif axes != wide:
            raise TileProgramError(
                f"several lanes that store one element of {tensor.name} are not accepted"
            )
        masks = [*masks, *(condition.text for condition in conditions)]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        text = self._lanes.filled(value, tensor.dtype)
        if is_atomic:
            self._emit(f'tl.atomic_add({pointer}, {text}{mask}, sem="relaxed")')
        else:
            self._emit(f"tl.store({pointer}, {text}{mask})")

    def _access(
        self, tensor: Tensor, indices: Sequence[Value]
    ) -> tuple[str, list[str], frozenset[int]]:
        """A pointer for each lane, the conditions under which it is inside, and its axes."""
        masks: list[str] = []
        every = frozenset[int]().union(*(index.axes for index in indices))
        axes = every & self._lanes.wide_axes
        for axis, extent in enumerate(self._lanes.extents):
            if padded(extent) != extent:
                masks.append(f"({self._lanes.range_text(axis)} < {extent})")
        offset: Value = whole(0)
        bound = whole(0)
        strides = [self._value(stride) for stride in tensor.strides]
        for index, stride, extent in zip(indices, strides, tensor.shape, strict=True):
            masks += self._inside(index, self._value(extent))
            bound = binary(extent, "+", bound, binary(extent, "*", index, stride))
        is_long = bound.high is None or bound.high > _MAX_I32
        for index, stride, extent in zip(indices, strides, tensor.shape, strict=True):
            if is_long and not index.is_literal:
                index = converted(index, DType.I64)
            offset = binary(extent, "+", offset, binary(extent, "*", index, stride))
        name = pointer_name(tensor)
        pointer = name if offset.text == "0" else f"{name} + {offset.text}"
        if not self._lanes.extents:
            return pointer, masks, axes
        if not every:  # a block of one element
            pointer = f"{pointer} + {self._zeros()}"
        return pointer, masks, axes

    def _zeros(self) -> str:
        return f"tl.zeros({shape_text([1] * len(self._lanes.extents))}, tl.int32)"

    def _inside(self, index: Value, extent: Value) -> Iterator[str]:
        if index.low is None or index.low < 0:
            yield f"({index.text} >= 0)"
        is_below = (
            index.high is not None and extent.low is not None and index.high < extent.low
        )
        if not is_below:
            yield f"({index.text} < {extent.text})"


def _without_unused_ranges(lines: Sequence[str]) -> list[str]:
    """The lines without ranges of lanes that no other line names."""
    used = Counter(name for line in lines for name in _LANE_NAME.findall(line))
    return [line for line in lines if not (name := _LANE_LINE.match(line)) or used[name[1]] > 1]


def _wide(extents: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for extent in extents if extent > 1)


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(position) for position in range(len(order))]
