"""Forms of pointwise kernels of varying sizes, which assume that sizes are multiples of numbers.

In groups, a program has 2,048 consecutive points as 128 groups of 16. Indices, loads and arithmetic
that neighbours share are computed once for a group, above all the divisions by sizes that recover
the axes of a point. Groups need an innermost extent that is a multiple of 16. Over rows, a program
has 256 consecutive points of eight images, which share what belongs to a channel
(`row_blocks.py`). This needs a multiple of eight images, which are aligned and have many points.

So some sizes must be multiples of a number, which a guard checks, and the kernel says so itself: it
has `16*(s2//16)` for `s2`. Then Triton also sees that accesses are aligned, such as those at half a
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from codegen_svc.emitters.triton.row_blocks import block_within_rows, is_multiple, shares_columns
from codegen_svc.emitters.triton.tiling import POINTWISE_ELEMS_PER_THREAD, Tiling
from kernelfarm.ir.algebra.atoms import lone_symbol
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, symbol
from kernelfarm.ir.loop_ir import Axis, IndexValue, Kernel, Load, Statement, Store
from kernelfarm.targets import GpuFacts

GROUP = 16
"""Neighbours in a group: 32 bytes of bf16, one sector of memory."""

_GROUPS = 128
_IMAGES, _COLUMNS = 8, 256
_THREAD_COLUMNS = 16
_IMAGE_AXES = 3
# Rows are aligned, and so long that few lanes are behind their ends.
_CHANNELS = 256
_SMALLEST = 3
_ACCESS_BYTES = 16
# Half of a row of 32 or a quarter of one of 64 is a group.
_DIVISORS = (1, 2, 4, 8, 16, 32, 64)
_MOST_SIZES = 3


@dataclass(frozen=True, slots=True)
class VaryingForm:
    """A kernel to emit for another one, if sizes are multiples of `divisors`.

    A program has `columns` points of the last `axes` axes, for each of `rows` points of the others,
    and a thread has `per_thread` of them.
    """

    kernel: Kernel
    divisors: tuple[tuple[str, int], ...]
    rows: int = _GROUPS
    columns: int = GROUP
    axes: int = 1
    per_thread: int = POINTWISE_ELEMS_PER_THREAD

    def tiling(self, gpu: GpuFacts, index_bits: int, level: int) -> Tiling | None:
        """The tiling, shrunk `level` times; None if there is no smaller one."""
        if level > _SMALLEST:
            return None
        rows = self.rows >> level
        warps = max(1, rows * self.columns // (self.per_thread * gpu.warp_size))
        tiling = Tiling(rows, rows, self.columns, False, index_bits, warps, 1, is_tile=True)
        return replace(tiling, tile_axes=self.axes)


@dataclass(frozen=True, slots=True)
class _Multiple:
    """An expression that should be a multiple of a number at all points."""

    expr: Expr
    of: int

    def holds(self, sizes: dict[str, Expr]) -> bool:
        return is_multiple(self.expr.substitute(sizes), self.of)


def in_groups(kernel: Kernel) -> VaryingForm | None:
    """The kernel in groups; None if they are no gain, or if it has none. Its positions are no data.

    They are a gain if axes are recovered by divisions by sizes. Then rows of static extent are in
    groups, too, but not if that needs a guard, or if programs are within rows.
    """
    if kernel.reduction or all(axis.extent.is_constant for axis in kernel.outer[1:]):
        return None
    starts = _starts(kernel)
    if starts is None:
        return None
    extent = _Multiple(kernel.outer[-1].extent, GROUP)
    if extent.expr.is_constant:
        is_static = block_within_rows(kernel) is None and all(
            s.holds({}) for s in (extent, *starts)
        )
        return _grouped(kernel, {}) if is_static else None
    enough: dict[str, int] | None = None
    for divisors in _choices(kernel, [extent, *starts]):
        sizes = _multiples(divisors)
        if not extent.holds(sizes):
            continue
        enough = enough or divisors
        if all(start.holds(sizes) for start in starts):
            return _grouped(kernel, divisors)
    return None if enough is None else _grouped(kernel, enough)


def over_rows(kernel: Kernel) -> VaryingForm | None:
    """The kernel with several images in a program; None if this is no gain, or cannot be.

    Its axes are images, channels and at last their pixels. Its positions are no data.
    """
    if kernel.reduction or len(kernel.outer) != _IMAGE_AXES:
        return None
    images, channels = (lone_symbol(axis.extent) for axis in kernel.outer[:-1])
    pixels = kernel.outer[-1]
    if images is None or channels is None or pixels.extent.is_constant or images == channels:
        return None
    if not pixels.extent.symbols.isdisjoint((images, channels)):
        return None
    found = _with_sizes(kernel, _multiples({channels: _CHANNELS}))
    if not shares_columns(found, _IMAGE_AXES - 1):
        return None
    divisors = tuple(sorted({images: _IMAGES, channels: _CHANNELS}.items()))
    return VaryingForm(found, divisors, _IMAGES, _COLUMNS, _IMAGE_AXES - 1, _THREAD_COLUMNS)


def _starts(kernel: Kernel) -> list[_Multiple] | None:
    """Where rows begin that neighbours access; None if neighbours access no neighbouring elements.

    What is the same for all points of a row may be anywhere.
    """
    last = kernel.outer[-1].name
    found = []
    for statement in kernel.body:
        if not isinstance(statement, Load | Store) or last not in statement.index.symbols:
            continue
        parts = statement.index.linear_in(last)
        if parts is None or parts[0] is not ONE:
            return None
        itemsize = kernel.param(statement.param).dtype.itemsize_bytes
        found.append(_Multiple(parts[1], max(1, _ACCESS_BYTES // itemsize)))
    return found


def _choices(kernel: Kernel, wanted: list[_Multiple]) -> Iterator[dict[str, int]]:
    """Divisors of sizes, those first that hold for most sizes.

    The first expression decides whether there are groups, so its sizes come first.
    """
    limits = {size.name: size.upper for size in kernel.sizes}
    names: list[str] = []
    for one in wanted:
        if one is wanted[0] or not one.holds({}):
            names += sorted(limits.keys() & one.expr.symbols - set(names))
    names = names[:_MOST_SIZES]
    ranges = [[d for d in _DIVISORS if d <= (limits[name] or d)] for name in names]
    for divisors in sorted(product(*ranges), key=lambda found: (prod(found), max(found))):
        yield dict(zip(names, divisors, strict=True))


def _multiples(divisors: dict[str, int]) -> dict[str, Expr]:
    """Each size as a number times a quotient."""
    return {n: d * (symbol(n) // as_expr(d)) for n, d in divisors.items() if d > 1}


def _grouped(kernel: Kernel, divisors: dict[str, int]) -> VaryingForm | None:
    last = kernel.outer[-1]
    group, neighbour = f"{last.name}_group", f"{last.name}_in_group"
    taken = {axis.name for axis in kernel.outer} | {size.name for size in kernel.sizes}
    if not taken.isdisjoint((group, neighbour)):
        return None
    known = _with_sizes(kernel, _multiples(divisors))
    points = Axis(group, known.outer[-1].extent // GROUP), Axis(neighbour, as_expr(GROUP))
    values = {last.name: GROUP * symbol(group) + symbol(neighbour)}
    body = tuple(_substituted(statement, values) for statement in known.body)
    found = replace(known, outer=(*known.outer[:-1], *points), body=body)
    return VaryingForm(found, tuple((n, d) for n, d in sorted(divisors.items()) if d > 1))


def _with_sizes(kernel: Kernel, sizes: dict[str, Expr]) -> Kernel:
    return replace(
        kernel,
        outer=tuple(Axis(axis.name, axis.extent.substitute(sizes)) for axis in kernel.outer),
        body=tuple(_substituted(statement, sizes) for statement in kernel.body),
    )


def _substituted(statement: Statement, values: dict[str, Expr]) -> Statement:
    match statement:
        case Load(index=index) | Store(index=index):
            return replace(statement, index=index.substitute(values))
        case IndexValue(expr=expr):
            return replace(statement, expr=expr.substitute(values))
        case _:
            return statement
