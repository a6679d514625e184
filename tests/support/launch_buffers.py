"""The buffers of a launch, as a loader of tests receives them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelfarm.ir.interpret import numpy_dtype
from kernelfarm.ir.loop_ir import Kernel


def buffers_at(
    table: int, kernel: Kernel, sizes: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays on the memory of all buffers, by name; `table` is the address of the pointers."""
    pointers = (ctypes.c_uint64 * len(kernel.params)).from_address(table)
    buffers = {}
    for param, pointer in zip(kernel.params, pointers, strict=True):
        kind, count = numpy_dtype(param.dtype), param.size_elems.evaluate(sizes)
        raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(pointer)
        buffers[param.name] = np.frombuffer(raw, kind)
    return buffers
