"""Views of a plan's buffers for one assignment of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.pytorch.tensors import reinterpret_tensor
from kernelfarm.client.runtime.picks import Form
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.program_ir import Buffer, BufferKind, TensorView

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SizedBuffer:
    """A buffer of the plan with its index among a call's values, and with its size."""

    index: int
    name: str
    kind: BufferKind
    position: int
    dtype: torch.dtype
    size_elems: int
    offset_bytes: int
    is_apart: bool

    @property
    def is_in_arena(self) -> bool:
        """True for a temporary without memory of its own."""
        return self.kind is BufferKind.TEMPORARY and not self.is_apart


@dataclass(frozen=True, slots=True)
class View:
    """A view of a buffer with all sizes known.

    Units: shape, strides and offset in elements of `dtype`.
    """

    buffer: SizedBuffer
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def span_elems(self) -> int:
        """The number of elements from the first to the last one addressed; 0 for an empty view."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def is_whole(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        """True if a buffer's tensor with this shape and these strides equals the view."""
        return (
            self.offset == 0
            and self.dtype is self.buffer.dtype
            and (self.shape, self.strides) == (shape, strides)
        )

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of a tensor's memory; the offset counts from the tensor's first element."""
        return self.form()(tensor)

    def form(self) -> Form:
        """`of` as a function without attribute look-ups."""
        shape, strides, offset, dtype = self.shape, self.strides, self.offset, self.dtype
        if dtype is self.buffer.dtype:
            return lambda tensor: reinterpret_tensor(tensor, shape, strides, offset)
        return lambda tensor: reinterpret_tensor(tensor.view(dtype), shape, strides, offset)

    def of_arena(self, arena: torch.Tensor) -> torch.Tensor:
        """The view of a temporary within the arena."""
        first = self.buffer.offset_bytes // self.dtype.itemsize + self.offset
        return arena.view(self.dtype).as_strided(self.shape, self.strides, first)


def is_same_memory(
    shape: tuple[int, ...], strides: tuple[int, ...], others: tuple[int, ...]
) -> bool:
    """True if two layouts of one shape have each element at the same address."""
    return 0 in shape or all(
        extent == 1 or stride == other
        for extent, stride, other in zip(shape, strides, others, strict=True)
    )


def sized_buffer(buffer: Buffer, index: int, sizes: Sizes) -> SizedBuffer:
    """The buffer with numbers for its sizes."""
    offset = 0 if buffer.offset_bytes is None else buffer.offset_bytes.evaluate(sizes)
    return SizedBuffer(
        index,
        buffer.name,
        buffer.kind,
        buffer.position,
        dtype_to_torch(buffer.dtype),
        buffer.size_elems.evaluate(sizes),
        offset,
        buffer.is_apart,
    )


def view_of(view: TensorView, buffers: Mapping[str, SizedBuffer], sizes: Sizes) -> View:
    """The view with numbers for its sizes.

    Raises:
        InvalidGraphError: the view exceeds its buffer, or its elements have another width.
    """
    buffer = buffers[view.buffer]
    shape = tuple(extent.evaluate(sizes) for extent in view.sizes)
    strides = tuple(stride.evaluate(sizes) for stride in view.strides)
    # An empty view may begin after the end of its buffer, such as an empty last slice.
    offset = 0 if 0 in shape else view.offset_elems.evaluate(sizes)
    found = View(buffer, dtype_to_torch(view.dtype), shape, strides, offset)
    if found.dtype.itemsize != buffer.dtype.itemsize:
        raise InvalidGraphError(
            f"plan: buffer {buffer.name} of {buffer.dtype} viewed as {found.dtype}; "
            "expected elements of equal width"
        )
    end = found.offset + found.span_elems()
    if found.offset < 0 or min(strides, default=0) < 0 or end > buffer.size_elems:
        raise InvalidGraphError(
            f"plan: a view of buffer {buffer.name} starts at element {found.offset} and ends at"
            f" element {end}; the buffer has {buffer.size_elems}"
        )
    return found
