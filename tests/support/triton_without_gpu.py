"""Lets PyTorch capture Triton kernels on a machine without a GPU.

PyTorch looks for a device before it traces a call of a kernel, and asks Triton's driver for the
device's target to find out which tensors the kernel changes. Both answers are given here; the rest
is PyTorch's and Triton's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget


class _Driver:
    """The part of a driver that PyTorch asks."""

    def get_current_target(self) -> GPUTarget:
        """An H100's target."""
        return GPUTarget("cuda", 90, 32)


@contextmanager
def as_with_a_gpu() -> Iterator[None]:
    """In the block, PyTorch captures calls of Triton kernels on tensors of the CPU."""
    # Triton 3.9 warns unless it is set.
    fusion = mock.patch.dict(os.environ, TRITON_DEFAULT_FP_FUSION="1")
    has_triton = mock.patch("torch.utils._triton.has_triton", return_value=True)
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(_Driver())
    try:
        with has_triton, fusion:
            yield
    finally:
        driver._active = before
