"""The meaning of every prim other than scalar operations, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.interpret.arrays import Array, numpy_dtype
from kernelfarm.ir.interpret.orders import sorted_positions
from kernelfarm.ir.interpret.reductions import reduce_axes, scan_axis
from kernelfarm.ir.interpret.scatters import scatter_into
from kernelfarm.ir.loop_ir import StoreMode
from kernelfarm.ir.prims import PRIMS, SCAN_OPS, PrimKind

Sizes = Mapping[str, int]
Meaning = Callable[[Node, list[Array], Sizes], Array]


def _sizes(node: Node, name: str, sizes: Sizes) -> list[int]:
    return [expr.evaluate(sizes) for expr in cast(tuple[Expr, ...], node.attr(name))]


def _dims(node: Node) -> tuple[int, ...]:
    return cast(tuple[int, ...], node.attr("dims"))


def _dim(node: Node) -> int:
    return cast(int, node.attr("dim"))


def _full(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    value = node.attr("value")
    number = value.evaluate(sizes) if isinstance(value, Expr) else cast(float, value)
    dtype = numpy_dtype(cast(DType, node.attr("dtype")))
    return np.full(_sizes(node, "shape", sizes), number).astype(dtype)


def _iota(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    length = cast(Expr, node.attr("length")).evaluate(sizes)
    return np.arange(length, dtype=numpy_dtype(cast(DType, node.attr("dtype"))))


def _reshape(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    return operands[0].reshape(_sizes(node, "shape", sizes))


def _permute(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    return operands[0].transpose(_dims(node))


def _broadcast_in_dim(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    shape = _sizes(node, "shape", sizes)
    aligned = [1] * len(shape)
    for axis, dim in enumerate(_dims(node)):
        aligned[dim] = operands[0].shape[axis]
    return np.broadcast_to(operands[0].reshape(aligned), shape)


def _slice(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    bounds = [_sizes(node, name, sizes) for name in ("starts", "limits", "steps")]
    return operands[0][tuple(slice(*bound) for bound in zip(*bounds, strict=True))]


def _flip(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    return np.flip(operands[0], _dims(node))


def _window(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    source, dims = operands[0], _dims(node)
    extents, strides, dilations = (
        _sizes(node, name, sizes) for name in ("sizes", "strides", "dilations")
    )
    spans = [dilation * (size - 1) + 1 for size, dilation in zip(extents, dilations, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(source, spans, axis=dims)
    steps = [slice(None)] * source.ndim
    for axis, stride in zip(dims, strides, strict=True):
        steps[axis] = slice(None, None, stride)
    return found[(*steps, *(slice(None, None, dilation) for dilation in dilations))]


def _cat(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    return np.concatenate(operands, axis=_dim(node))


def _pad(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    source = operands[0]
    low, high = _sizes(node, "low", sizes), _sizes(node, "high", sizes)
    shape = [a + n + b for a, n, b in zip(low, source.shape, high, strict=True)]
    result: Array = np.full(shape, node.attr("value")).astype(source.dtype)
    inside = tuple(slice(a, a + n) for a, n in zip(low, source.shape, strict=True))
    result[inside] = source
    return result


def _reduce(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    dims = _dims(node)
    reduced = reduce_axes(node.op, operands[0], dims, node.types[0].dtype)
    return reduced.reshape([n for axis, n in enumerate(reduced.shape) if axis not in dims])


def _scan(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    return scan_axis(node.op, operands[0], _dim(node), node.types[0].dtype)


def _checked_index(node: Node, index: Array, extent: int) -> Array:
    outside = (index < -extent) | (index >= extent)
    if outside.any():
        worst = int(index[outside].ravel()[0])
        raise IndexError(f"{node.op}: index {worst}; expected one from -{extent} to {extent} - 1")
    return np.where(index < 0, index + extent, index).astype(np.int64)


def _take(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    source, index = operands
    dim = _dim(node)
    return np.take(source, _checked_index(node, index, source.shape[dim]), axis=dim)


def _gather_nd(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    source, indices = operands[0], operands[1:]
    dims = _dims(node)
    rest = [axis for axis in range(source.ndim) if axis not in dims]
    moved = source.transpose(*dims, *rest)
    checked = [
        _checked_index(node, index, source.shape[dim])
        for index, dim in zip(indices, dims, strict=True)
    ]
    return np.asarray(moved[tuple(checked)])


def _scatter(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    base, indices, updates = operands[0], operands[1:-1], operands[-1]
    dims = _dims(node)
    rest = [axis for axis in range(base.ndim) if axis not in dims]
    rank = indices[0].ndim
    parts: list[Array] = [np.zeros(())] * base.ndim
    for index, dim in zip(indices, dims, strict=True):
        checked = _checked_index(node, index, base.shape[dim])
        parts[dim] = checked.reshape(checked.shape + (1,) * len(rest))
    for position, axis in enumerate(rest):
        shape = [1] * (rank + len(rest))
        shape[rank + position] = base.shape[axis]
        parts[axis] = np.arange(base.shape[axis]).reshape(shape)
    whole = np.broadcast_arrays(*parts)
    flat = np.ravel_multi_index([part.ravel() for part in whole], base.shape)
    result = np.array(base, order="C")
    mode = StoreMode(node.attr("mode"))
    scatter_into(result.reshape(-1), flat, updates.reshape(-1), mode)
    return result


def _argsort(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    return sorted_positions(operands[0], _dim(node), descending=bool(node.attr("descending")))


def _gather_along(node: Node, operands: list[Array], sizes: Sizes) -> Array:
    source, index = operands
    dim = _dim(node)
    checked = _checked_index(node, index, source.shape[dim])
    # As in torch.gather, the index may be smaller than the source on the other axes.
    window = tuple(
        slice(None) if axis == dim else slice(0, extent) for axis, extent in enumerate(index.shape)
    )
    return np.take_along_axis(source[window], checked, axis=dim)


MEANINGS: dict[str, Meaning] = {
    "full": _full,
    "iota": _iota,
    "reshape": _reshape,
    "permute": _permute,
    "broadcast_in_dim": _broadcast_in_dim,
    "slice": _slice,
    "flip": _flip,
    "window": _window,
    "cat": _cat,
    "pad": _pad,
    **dict.fromkeys(SCAN_OPS, _scan),
    "argsort": _argsort,
    "scatter": _scatter,
    "take": _take,
    "gather_nd": _gather_nd,
    "gather_along": _gather_along,
    **{prim.name: _reduce for prim in PRIMS.values() if prim.kind is PrimKind.REDUCE},
}
"""Meanings by prim name; those of scalar operations are in `scalar_ops`."""
