"""The meaning of updates at indices that may repeat."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelfarm.ir.interpret.arrays import Array
from kernelfarm.ir.loop_ir import StoreMode

_COMBINING: dict[StoreMode, Any] = {
    StoreMode.ADD: np.add,
    StoreMode.MUL: np.multiply,
    StoreMode.MIN: np.minimum,
    StoreMode.MAX: np.maximum,
}


def scatter_into(buffer: Array, index: Array, values: Array, mode: StoreMode) -> None:
    """Updates elements of a flat buffer in place, in order.

    Shapes:
        buffer: (n,); index, values: (m,), with index from 0 to n-1.
    """
    with np.errstate(all="ignore"):
        if mode is StoreMode.SET:
            buffer[index] = values  # of several updates of one element, NumPy keeps the last
        else:
            _COMBINING[mode].at(buffer, index, values)
