"""Tensor maps of launches on NVIDIA GPUs: descriptors of a matrix from which hardware copies boxes.

A map holds its buffer's address. So it is made again when the pointer table has another one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import BoundTensorMap

MAP_BYTES = 128
_MAP_ALIGNMENT = 64
# CUDA Driver API: CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle (by bytes),
# CUtensorMapL2promotion, CUtensorMapFloatOOBfill.
_TYPES = {DType.F16: 6, DType.BF16: 9, DType.F32: 7}
_NOT_INTERLEAVED = 0
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTED_TO_128_BYTES = 2
_FILLED_WITH_ZEROS = 0
# Up to driver 13.1, the map of a small matrix needs this bit of its second word to be 0 (CUTLASS,
# commit b7ecaa60).
_LAST_DRIVER_WITH_BIT = 13010
_SMALL_BYTES = 128 << 10
_BIT = 1 << 21
# Addresses whose maps are kept. Activations mostly have the same few.
_MOST_KNOWN = 16


class MapEncoder:
    """Makes tensor maps by the driver's `cuTensorMapEncodeTiled`; `version` is the driver's."""

    def __init__(self, encode: Callable[..., int], version: int) -> None:
        self._encode, self._version = encode, version

    def made(self, matrix: BoundTensorMap, address: int) -> tuple[int, bytes]:
        """The driver's status, and the map of a matrix in a buffer at an address.

        Raises:
            MalformedMessageError: maps have no such element type.
        """
        if matrix.facts.dtype not in _TYPES:
            known = ", ".join(t.value for t in _TYPES)
            raise MalformedMessageError(
                f"tensor map of {matrix.facts.dtype.value}; expected {known}"
            )
        rank = len(matrix.extents)
        memory = (ctypes.c_uint64 * (2 * MAP_BYTES // 8))()
        start = -ctypes.addressof(memory) % _MAP_ALIGNMENT
        status = self._encode(
            ctypes.c_void_p(ctypes.addressof(memory) + start),
            ctypes.c_int(_TYPES[matrix.facts.dtype]),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(address + matrix.offset_bytes),
            _innermost_first(ctypes.c_uint64, matrix.extents),
            _innermost_first(ctypes.c_uint64, matrix.strides_bytes),
            _innermost_first(ctypes.c_uint32, matrix.facts.spans()),
            _innermost_first(ctypes.c_uint32, matrix.facts.steps or (1,) * rank),
            ctypes.c_int(_NOT_INTERLEAVED),
            ctypes.c_int(_SWIZZLES[matrix.facts.swizzle_bytes]),
            ctypes.c_int(_PROMOTED_TO_128_BYTES),
            ctypes.c_int(_FILLED_WITH_ZEROS),
        )
        if self._version <= _LAST_DRIVER_WITH_BIT and _size_bytes(matrix) < _SMALL_BYTES:
            memory[start // 8 + 1] &= ~_BIT
        return status, bytes(memory)[start : start + MAP_BYTES]


def _innermost_first(kind: Any, values: tuple[int, ...]) -> Any:
    return (kind * max(1, len(values)))(*reversed(values))


def _size_bytes(matrix: BoundTensorMap) -> int:
    """The bytes from a matrix's first to its last element."""
    strides = (*matrix.strides_bytes, matrix.facts.dtype.itemsize_bytes)
    steps = ((e - 1) * stride for e, stride in zip(matrix.extents, strides, strict=True))
    return sum(steps) + matrix.facts.dtype.itemsize_bytes


class BufferMap:
    """The tensor map of a buffer whose address is at `place` in memory.

    `memory` is the address of the map, and `address` that of the matrix for which it was made.
    """

    def __init__(self, matrix: BoundTensorMap, place: int, encoder: MapEncoder) -> None:
        self.place = ctypes.c_uint64.from_address(place)
        self.address = 0
        self._matrix, self._encoder = matrix, encoder
        self._known: dict[int, bytes] = {}
        self._owner = (ctypes.c_char * (MAP_BYTES + _MAP_ALIGNMENT))()
        self.memory = -(-ctypes.addressof(self._owner) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT

    def follow(self) -> int:
        """Makes the map for the address that is at the place; returns the driver's status."""
        address = self.place.value
        found = self._known.get(address)
        if found is None:
            status, found = self._encoder.made(self._matrix, address)
            if status:
                return status
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[address] = found
        ctypes.memmove(self.memory, found, MAP_BYTES)
        self.address = address
        return 0

    def numbers(self) -> list[Any]:
        """The arguments behind the map: 32-bit extents, then 64-bit strides in elements."""
        size = self._matrix.facts.dtype.itemsize_bytes
        strides = (*(stride // size for stride in self._matrix.strides_bytes), 1)
        extents = [ctypes.c_int32(extent) for extent in self._matrix.extents]
        return [*extents, *(ctypes.c_int64(stride) for stride in strides)]
