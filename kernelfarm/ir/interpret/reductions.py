"""The meaning of reductions and scans on NumPy arrays, as PyTorch defines it on tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret.arrays import Array
from kernelfarm.ir.interpret.scalar_ops import convert, widened
from kernelfarm.ir.loop_ir import GUIDES


def reduce_axes(op: str, array: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    """A reduction over axes, which are kept with extent 1; `dtype` is the result's element type.

    Sums and products of floats accumulate in f64 and are rounded once; guided sums use two passes.
    amax, amin, argmax and argmin propagate NaN. Arg-reductions give the flat index over the axes of
    the first match.
    """
    kept = [axis for axis in range(array.ndim) if axis not in axes]
    # reshape(-1) cannot infer the extent of an empty array, so both extents are given.
    flat = array.transpose(*kept, *axes).reshape(
        [array.shape[axis] for axis in kept] + [math.prod(array.shape[axis] for axis in axes)]
    )
    with np.errstate(all="ignore"):
        result = _reduced(op, _accumulable(flat, op))
        result = convert(result, dtype)
    return result.reshape([1 if axis in axes else n for axis, n in enumerate(array.shape)])


def cumulative_sum(array: Array, axis: int, dtype: DType) -> Array:
    """The running sum along an axis; floats accumulate in f64."""
    with np.errstate(all="ignore"):
        wide = _accumulable(array, "sum")
        return convert(np.cumsum(wide, axis=axis, dtype=wide.dtype), dtype)


def scan_axis(op: str, array: Array, axis: int, dtype: DType) -> Array:
    """A running reduction along an axis, inclusive; `dtype` is the result's element type.

    Sums and products of floats accumulate in f64. NaN propagates from its position on. The indices
    of extrema are those of the last match, and every NaN matches.
    """
    if op == "cumsum":
        return cumulative_sum(array, axis, dtype)
    with np.errstate(all="ignore"):
        if op == "cumprod":
            wide = _accumulable(array, "prod")
            return convert(np.cumprod(wide, axis=axis, dtype=wide.dtype), dtype)
        if op == "logcumsumexp":
            wide = _accumulable(array, "sum")
            return convert(np.asarray(np.logaddexp.accumulate(wide, axis=axis)), dtype)
        wide = widened(array)
        extremum = np.maximum if op.startswith("cummax") else np.minimum
        running = np.asarray(extremum.accumulate(wide, axis=axis))
        if not op.endswith("_index"):
            return convert(running, dtype)
        is_hit = (wide == running) | (wide != wide)  # noqa: PLR0124 (NaN is what differs from itself)
        shape = [n if k == axis else 1 for k, n in enumerate(array.shape)]
        positions = np.arange(array.shape[axis]).reshape(shape)
        return np.asarray(np.maximum.accumulate(np.where(is_hit, positions, 0), axis=axis))


def _accumulable(array: Array, op: str) -> Array:
    if array.dtype.kind in "fV" and op in ("sum", "prod", *GUIDES):
        return array.astype(np.float64)
    return widened(array)


def _reduced(op: str, wide: Array) -> Array:
    if op == "amax":
        return np.asarray(np.max(wide, axis=-1, initial=_extreme(wide, is_top=False)))
    if op == "amin":
        return np.asarray(np.min(wide, axis=-1, initial=_extreme(wide, is_top=True)))
    if op == "softmax_sum":
        return np.asarray(np.sum(np.exp(wide - _reduced("amax", wide)[..., None]), axis=-1))
    if op == "welford_m2":
        mean = np.sum(wide, axis=-1, keepdims=True) / max(wide.shape[-1], 1)
        return np.asarray(np.sum(np.square(wide - mean), axis=-1))
    if op in ("sum", "prod"):
        return np.asarray(_PLAIN[op](wide, axis=-1, dtype=wide.dtype))
    return np.asarray(_PLAIN[op](wide, axis=-1))


_PLAIN: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


def _extreme(wide: Array, *, is_top: bool) -> float | int:
    """The neutral element of amin (`is_top`) or amax."""
    if wide.dtype.kind == "f":
        return math.inf if is_top else -math.inf
    limits = np.iinfo(wide.dtype)
    return int(limits.max) if is_top else int(limits.min)
