"""Views of a plan's buffers for one assignment of its sizes, and how a call gets at them."""

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
    """A buffer of the plan with its place in a call's tables and its size."""

    index: int
    name: str
    kind: BufferKind
    position: int
    dtype: torch.dtype
    size_elems: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class View:
    """A view with all numbers known, in elements of its own type."""

    buffer: SizedBuffer
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def span_elems(self) -> int:
        """Elements from the first to the last one addressed; 0 for an empty view."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def is_whole(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        """True if a tensor of this layout that is the buffer is the view itself."""
        return (
            self.offset == 0
            and self.dtype is self.buffer.dtype
            and (self.shape, self.strides) == (shape, strides)
        )

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of a tensor's memory, counted from the tensor's first element."""
        return self.form()(tensor)

    def form(self) -> Form:
        """`of` as a function that looks nothing up."""
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
    """True if two layouts of one shape put each element at the same place."""
    return 0 in shape or all(
        extent == 1 or stride == other
        for extent, stride, other in zip(shape, strides, others, strict=True)
    )


def sized_buffer(buffer: Buffer, index: int, sizes: Sizes) -> SizedBuffer:
    """The buffer for an assignment of sizes."""
    offset = 0 if buffer.offset_bytes is None else buffer.offset_bytes.evaluate(sizes)
    return SizedBuffer(
        index,
        buffer.name,
        buffer.kind,
        buffer.position,
        dtype_to_torch(buffer.dtype),
        buffer.size_elems.evaluate(sizes),
        offset,
    )


def view_of(view: TensorView, buffers: Mapping[str, SizedBuffer], sizes: Sizes) -> View:
    """The view for an assignment of sizes.

    Raises:
        InvalidGraphError: it reaches beyond its buffer, or reinterprets elements of another width.
    """
    buffer = buffers[view.buffer]
    shape = tuple(extent.evaluate(sizes) for extent in view.sizes)
    strides = tuple(stride.evaluate(sizes) for stride in view.strides)
    # An empty view may begin beyond its buffer, as the last slice of nothing does.
    offset = 0 if 0 in shape else view.offset_elems.evaluate(sizes)
    found = View(buffer, dtype_to_torch(view.dtype), shape, strides, offset)
    if found.dtype.itemsize != buffer.dtype.itemsize:
        raise InvalidGraphError(
            f"plan: buffer {buffer.name} of {buffer.dtype} viewed as {found.dtype}; "
            "expected equal widths"
        )
    end = found.offset + found.span_elems()
    if found.offset < 0 or min(strides, default=0) < 0 or end > buffer.size_elems:
        raise InvalidGraphError(
            f"plan: a view of buffer {buffer.name} ends at element {end} from {found.offset} on; "
            f"the buffer has {buffer.size_elems}"
        )
    return found
