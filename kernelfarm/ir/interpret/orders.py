"""The meaning of sorting on NumPy arrays, as PyTorch defines it on tensors."""

from __future__ import annotations

import numpy as np

from kernelfarm.ir.interpret.arrays import Array
from kernelfarm.ir.interpret.scalar_ops import widened


def sorted_positions(array: Array, axis: int, *, descending: bool) -> Array:
    """Where the elements of each rank stand along an axis (i64).

    Equal elements keep their order; NaN is above every number: last, or first if `descending`.
    """
    wide = widened(array)
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable").astype(np.int64)
    # Backwards through the row backwards: equal elements come out in their own order.
    backwards = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.asarray(np.flip(array.shape[axis] - 1 - backwards, axis), np.int64)
