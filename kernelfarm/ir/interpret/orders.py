"""The meaning of sorting on NumPy arrays, as PyTorch defines it on tensors."""

from __future__ import annotations

import numpy as np

from kernelfarm.ir.interpret.arrays import Array
from kernelfarm.ir.interpret.scalar_ops import widened


def sorted_positions(array: Array, axis: int, *, descending: bool) -> Array:
    """The positions (i64) of the elements of each rank along an axis.

    Equal elements keep their order; NaN is above every number: last, or first if `descending`.
    """
    wide = widened(array)
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable").astype(np.int64)
    # Sorting the reversed row and reversing the result keeps the order of equal elements.
    backwards = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.asarray(np.flip(array.shape[axis] - 1 - backwards, axis), np.int64)
