"""Fast creation of tensors and views, for every call of a program.

The fast functions are those that code of torch's own compiler calls. They are private; if a version
of torch lacks one, the public function is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernelfarm.client.pytorch.huge_pages import LEAST_BYTES, ask_for_huge_pages
from kernelfarm.client.pytorch.private import (
    _empty_strided_cpu,
    _empty_strided_cuda,
    _reinterpret_tensor,
)

Sizes = tuple[int, ...]
ReinterpretTensor = Callable[[torch.Tensor, Sizes, Sizes, int], torch.Tensor]
MakeTensor = Callable[[], torch.Tensor]


def _as_strided(tensor: torch.Tensor, shape: Sizes, strides: Sizes, offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


reinterpret_tensor: ReinterpretTensor = _reinterpret_tensor or _as_strided
"""`(tensor, shape, strides, offset)` -> a view; the offset counts from the tensor's first element.

Units: strides and offset in elements.
"""

_QUICK_MAKERS: dict[str, Any] = {
    "cpu": _empty_strided_cpu,
    "cuda": _empty_strided_cuda,
}


def maker(shape: Sizes, strides: Sizes, dtype: torch.dtype, device: torch.device) -> MakeTensor:
    """A function that makes a new tensor of this layout at each call.

    Callers must make `device` the current device first.
    """
    quick = _QUICK_MAKERS.get(device.type)
    make: MakeTensor = (
        partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
        if quick is None
        else partial(quick, shape, strides, dtype)
    )
    if device.type != "cpu" or _size_bytes(shape, strides, dtype) < LEAST_BYTES:
        return make
    return lambda: ask_for_huge_pages(make())


def _size_bytes(shape: Sizes, strides: Sizes, dtype: torch.dtype) -> int:
    """The bytes from the first to the last element; 0 if there is none."""
    if 0 in shape:
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return (last + 1) * dtype.itemsize
