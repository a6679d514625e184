"""Tensor maps of launches, from what Triton says of the descriptors among a kernel's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen_svc.emitters.triton.tensor_maps import TensorMap
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.artifact import Number, TensorMapFacts
from kernelfarm.ir.loop_ir import Kernel

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


def tensor_maps(
    kernel: Kernel, maps: Sequence[TensorMap], facts: Mapping[str, Any]
) -> tuple[TensorMapFacts, ...]:
    """The tensor maps that a launch makes: a matrix's place, and how Triton wants it copied.

    `facts` are those of the compilation.
    """
    numbers = {param.name: number for number, param in enumerate(kernel.params)}
    made = []
    for own, copied in zip(maps, facts.get("tensordesc_meta") or (), strict=True):
        number = numbers[own.param]
        dtype = kernel.params[number].dtype
        strides = tuple(stride * dtype.itemsize_bytes for stride in own.strides)
        found = tensor_map((number, dtype, 0), own.shape, strides, copied)
        made.append(replace(found, steps=own.steps) if max(own.steps, default=1) > 1 else found)
    return tuple(made)


def _known(number: Number) -> Number:
    """The number as an integer, if it does not vary."""
    return number.constant if isinstance(number, Expr) and number.is_constant else number
