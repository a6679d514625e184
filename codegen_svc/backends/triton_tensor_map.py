"""Tensor maps of launches, from what Triton says of the descriptors among a kernel's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.artifact import Number, TensorMapFacts

# CUDA Driver API, CUtensorMapSwizzle: the bytes of each number.
_SWIZZLE_BYTES = (0, 32, 64, 128)


def tensor_map(
    place: tuple[int, DType, Number],
    extents: Sequence[Number],
    strides_bytes: Sequence[Number],
    copied: Mapping[str, Any],
) -> TensorMapFacts:
    """A tensor map of a launch: a matrix in a buffer, and how Triton wants it copied.

    `place` is the buffer's number, the type of its elements, and the matrix's offset in bytes.
    """
    number, dtype, offset_bytes = place
    swizzle = _SWIZZLE_BYTES[copied["swizzle"]]
    box = tuple(int(side) for side in copied["block_size"])
    sizes, steps = tuple(map(_known, extents)), tuple(map(_known, strides_bytes))
    return TensorMapFacts(number, dtype, sizes, steps, box, swizzle, _known(offset_bytes))


def _known(number: Number) -> Number:
    """The number as an integer, if it does not vary."""
    return number.constant if isinstance(number, Expr) and number.is_constant else number
