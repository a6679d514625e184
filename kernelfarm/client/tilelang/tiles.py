"""How tiles and lanes are written in Triton, whose blocks have sides that are powers of two."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelfarm.client.tilelang.expressions import TRITON_DTYPES, Value, converted
from kernelfarm.client.tilelang.program import (
    Atomic,
    Branch,
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
    Tile,
)
from kernelfarm.dtypes import DType


def padded(extent: int) -> int:
    """The side of a block that holds an extent."""
    return 1 << max(extent - 1, 0).bit_length()


def block_shape(extents: Sequence[int]) -> tuple[int, ...]:
    """The shape of a block that holds a tile."""
    return tuple(padded(extent) for extent in extents)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as Triton writes it."""
    return "[" + ", ".join(str(side) for side in shape) + "]"


def tile_name(tile: Tile) -> str:
    """The variable of a tile."""
    return f"{tile.name}_tile"


def is_whole(region: Region) -> bool:
    """True if a region is all of its tile."""
    return (
        isinstance(region.buffer, Tile)
        and region.extents == region.buffer.shape
        and all(isinstance(s, ast.Constant) and s.value == 0 for s in region.starts)
    )


def expanded(text: str, kept: Sequence[int], rank: int) -> str:
    """A block whose axes are `kept`, in order, with an axis of side one for each other axis."""
    if len(kept) == rank:
        return text
    return text + "[" + ", ".join(":" if axis in kept else "None" for axis in range(rank)) + "]"


@dataclass(frozen=True, slots=True)
class LaneBlock:
    """The lanes of a statement: the extents of its axes."""

    extents: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of their block."""
        return block_shape(self.extents)

    @property
    def wide_axes(self) -> frozenset[int]:
        """The axes of more than one lane."""
        return frozenset(axis for axis, extent in enumerate(self.extents) if extent > 1)

    def range_text(self, axis: int) -> str:
        """The lanes' numbers along an axis."""
        text = f"tl.arange(0, {self.shape[axis]})"
        return expanded(text, [axis], len(self.extents))

    def filled(self, value: Value, dtype: DType) -> str:
        """A value as a block of all lanes, in an element type."""
        name = TRITON_DTYPES[dtype]
        if not self.extents:
            return value.text if value.is_literal else converted(value, dtype).text
        if value.is_literal or not value.axes:
            return f"tl.full({shape_text(self.shape)}, {value.text}, {name})"
        text = converted(value, dtype).text
        if self.wide_axes <= value.axes:
            return text
        return f"tl.broadcast_to({text}, {shape_text(self.shape)})"


def tiles_to_begin(tiles: Sequence[Tile], body: Sequence[Statement]) -> list[Tile]:
    """The tiles whose variables need a value before the first statement.

    A variable of Triton that a loop or branch assigns must exist before, if it is used after it or
    in the next iteration.
    """
    uses: dict[str, list[tuple[tuple[int, ...], bool]]] = {tile.name: [] for tile in tiles}
    for path, name, is_overwritten in _uses(body, ()):
        if name in uses:
            uses[name].append((path, is_overwritten))
    found = []
    for tile in tiles:
        events = uses[tile.name]
        if not events:
            continue
        path, is_overwritten = events[0]
        if not is_overwritten or any(other[: len(path)] != path for other, _ in events):
            found.append(tile)
    return found


def _uses(
    body: Sequence[Statement], path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str, bool]]:
    """Each use of a tile in order: where, which, and whether it only overwrites all elements."""
    for number, statement in enumerate(body):
        inner = (*path, number)
        match statement:
            case Loop(body=inside):
                yield from _uses(inside, inner)
            case Branch(then=then, otherwise=otherwise):
                yield from _uses(then, (*inner, 0))
                yield from _uses(otherwise, (*inner, 1))
            case Parallel(body=lanes):
                yield from _lane_uses(lanes, path, is_conditional=False)
            case Fill(target=target):
                yield from _region_use(target, path, is_overwritten=True)
            case Copy(source=source, target=target) | Scan(source=source, target=target):
                yield from _region_use(source, path, is_overwritten=False)
                yield from _region_use(target, path, is_overwritten=True)
            case Atomic(source=source, target=target):
                yield from _region_use(source, path, is_overwritten=False)
            case Reduce(source=source, target=target, replaces=replaces):
                yield from _region_use(source, path, is_overwritten=False)
                yield from _region_use(target, path, is_overwritten=replaces)
            case Product(left=left, right=right, target=target, replaces=replaces):
                yield from _region_use(left, path, is_overwritten=False)
                yield from _region_use(right, path, is_overwritten=False)
                yield from _region_use(target, path, is_overwritten=replaces)


def _region_use(
    region: Region, path: tuple[int, ...], *, is_overwritten: bool
) -> Iterator[tuple[tuple[int, ...], str, bool]]:
    if isinstance(region.buffer, Tile):
        yield path, region.buffer.name, is_overwritten


def _lane_uses(
    body: Sequence[Statement], path: tuple[int, ...], *, is_conditional: bool
) -> Iterator[tuple[tuple[int, ...], str, bool]]:
    for statement in body:
        for child in _expressions_of(statement):
            for node in ast.walk(child):
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                    yield path, node.value.id, False
        match statement:
            case Branch(then=then, otherwise=otherwise):
                yield from _lane_uses(then, path, is_conditional=True)
                yield from _lane_uses(otherwise, path, is_conditional=True)
            case Store(buffer=Tile(name=name)):
                yield path, name, not is_conditional


def _expressions_of(statement: Statement) -> list[ast.expr]:
    match statement:
        case Branch(condition=condition):
            return [condition]
        case Store(value=value, indices=indices):
            return [value, *indices]
        case Let(value=value):
            return [value]
    return []
