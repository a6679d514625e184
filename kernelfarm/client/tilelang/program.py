"""A tile program as data: blocks of threads that move and compute whole tiles.

Grammar:

    TileProgram ::= name, params: [Tensor], sizes: [name], grid: [(name, expr)], threads,
                    tiles: [Tile], body: [Statement], outputs: [position]
    Statement   ::= Fill(Region, expr) | Copy(Region, Region) | Atomic(Region, Region)
                  | Product(Region, Region, Region, ...) | Reduce(Region, Region, kind, axis, ...)
                  | Scan(Region, Region, axis, reverse)
                  | Loop(name, begin, end, stages, [Statement]) | Let(name, expr)
                  | Branch(expr, [Statement], [Statement]) | Parallel([(name, extent)], [Lane])
    Lane        ::= Let | Store(buffer, [expr], expr, is_atomic) | Branch(expr, [Lane], [Lane])
    Region      ::= buffer, starts: [expr], extents: [integer]

An expr is a syntax tree of Python in the closed language of `expressions.py`; nothing evaluates it
here. A tile belongs to one block of threads, wherever it lies: registers or shared memory.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Union

from kernelfarm.dtypes import DType


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter in global memory; `shape` may name sizes, `strides` are in elements."""

    name: str
    shape: tuple[ast.expr, ...]
    strides: tuple[ast.expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of a block of threads."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


Buffer = Union[Tensor, Tile]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A box of a buffer."""

    buffer: Buffer
    starts: tuple[ast.expr, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """Each element becomes a value."""

    target: Region
    value: ast.expr


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Elements are converted and stored; outside of a tensor, zeros are read and none is stored."""

    source: Region
    target: Region


@dataclass(frozen=True, slots=True, eq=False)
class Atomic:
    """Elements are added to those of a tensor."""

    source: Region
    target: Region


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product of matrices is added to a tile, or replaces it.

    Shapes:
        left: (m, k), or (k, m) if transposed. right: (k, n), or (n, k). target: (m, n).
    """

    left: Region
    right: Region
    target: Region
    is_left_transposed: bool
    is_right_transposed: bool
    replaces: bool


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """A tile's axis is reduced; the results replace those of the target, or join them."""

    source: Region
    target: Region
    kind: str
    axis: int
    replaces: bool


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Running sums along an axis."""

    source: Region
    target: Region
    axis: int
    reverse: bool


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """A number with a name."""

    name: str
    value: ast.expr


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """One element for each lane; `is_atomic` adds it."""

    buffer: Buffer
    indices: tuple[ast.expr, ...]
    value: ast.expr
    is_atomic: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """Statements under a condition."""

    condition: ast.expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop of the block; `stages` is the depth of its pipeline, 0 if none is stated."""

    name: str
    begin: ast.expr
    end: ast.expr
    stages: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Parallel:
    """Independent iterations, all at once."""

    axes: tuple[tuple[str, int], ...]
    body: tuple[Statement, ...]


Statement = Union[
    Fill, Copy, Atomic, Product, Reduce, Scan, Let, Store, Branch, Loop, Parallel
]  # `Store` stands in `Parallel` alone, the others but `Let` and `Branch` outside of it.


@dataclass(frozen=True, slots=True, eq=False)
class TileProgram:
    """A kernel: `grid` names the indices of a block and their counts, x first."""

    name: str
    params: tuple[Tensor, ...]
    sizes: tuple[str, ...]
    grid: tuple[tuple[str, ast.expr], ...]
    threads: int
    tiles: tuple[Tile, ...]
    body: tuple[Statement, ...]
    outputs: tuple[int, ...]
