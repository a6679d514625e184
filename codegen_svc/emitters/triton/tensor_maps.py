"""Factors of products that are plain matrices: loaded by tensor maps instead of pointers.

A tensor map is a descriptor of a whole matrix. The hardware copies a block of it to shared memory
for one thread, and gives zeros past the matrix's ends. Rows must begin at multiples of 16 bytes.

A launch makes the maps of its buffers and passes them behind its buffers and sizes. On an H200,
kernels that make them themselves take 1 to 2 microseconds more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ZERO, Expr
from kernelfarm.ir.contractions import Contraction
from kernelfarm.ir.loop_ir import Kernel, Load

_ROW_BYTES = 16
_MAP_TYPE_BYTES = 2
_MATRIX = 2
_OFFSETS = {"XBLOCK": "xoffset", "RBLOCK": "roffset", "KBLOCK": "koffset"}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A factor's matrix; `is_turned` if its rows lie along the second axis of the factor's block.

    `sides` are the sides of a block of the matrix, names or numbers, and `offsets` where it begins,
    as text. A block has each of `steps` elements along an axis. Axes are outermost first; the
    innermost one, whose elements are neighbours, has no stride.

    Units: `strides` and `steps` in elements.
    """

    param: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_turned: bool
    sides: tuple[str, ...]
    offsets: tuple[str, ...]
    steps: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The descriptor's name in Triton's text."""
        return f"{self.param}_map"

    def loaded(self) -> str:
        """A block as Triton text."""
        text = f"{self.name}.load([{', '.join(self.offsets)}])"
        if len(self.sides) > _MATRIX:
            text += ".reshape([RBLOCK, KBLOCK])"
        return text + ".T" if self.is_turned else text

    def block_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a block for the sizes of sides that have names."""
        return tuple(sizes[side] if side in sizes else int(side) for side in self.sides)


def tensor_maps(kernel: Kernel, found: Contraction) -> dict[int, TensorMap]:
    """The tensor maps of factors by the numbers of their loads; empty if one factor has none."""
    if found.batches or len(found.rows) != 1 or len(found.columns) != 1:
        return {}
    if len(kernel.reduction) != 1 or kernel.sizes:
        return {}
    inner = kernel.reduction[0]
    maps: dict[int, TensorMap] = {}
    for product_sum in found.sums:
        for number, (first, second), sides in (
            (product_sum.left, (found.rows[0], inner), ("XBLOCK", "KBLOCK")),
            (product_sum.right, (inner, found.columns[0]), ("KBLOCK", "RBLOCK")),
        ):
            load = kernel.body[number]
            if not isinstance(load, Load) or load.mask is not None:
                return {}
            extents = (first.extent.as_int(), second.extent.as_int())
            made = _map(load, (first.name, second.name), extents, sides)
            if made is None or kernel.param(load.param).dtype.itemsize_bytes != _MAP_TYPE_BYTES:
                return {}
            maps[number] = made
    params = [made.param for made in maps.values()]
    return maps if len(set(params)) == len(params) else {}


def _map(
    load: Load, axes: tuple[str, str], extents: tuple[int, int], sides: tuple[str, str]
) -> TensorMap | None:
    strides = _strides(load.index, axes)
    if strides is None:
        return None
    is_turned = strides[0] == 1
    shape = (extents[1], extents[0]) if is_turned else extents
    outer, inner = (strides[1], strides[0]) if is_turned else strides
    if inner != 1 or outer < shape[1] or outer * _MAP_TYPE_BYTES % _ROW_BYTES:
        return None
    along = (sides[1], sides[0]) if is_turned else sides
    offsets = tuple(_OFFSETS[side] for side in along)
    return TensorMap(load.param, shape, (outer,), is_turned, along, offsets)


def _strides(index: Expr, axes: tuple[str, str]) -> tuple[int, int] | None:
    """The steps of an index along two axes; None if it has other parts."""
    found = []
    for axis in axes:
        parts = index.linear_in(axis)
        if parts is None or not parts[0].is_constant:
            return None
        found.append(parts[0].as_int())
        index = parts[1]
    return (found[0], found[1]) if index is ZERO else None
