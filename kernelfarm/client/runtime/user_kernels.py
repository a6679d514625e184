"""Launches users' kernels: the farm's binary on the tensors of a call, with the node's grid.

The node changes nothing, so the kernel works on copies of the tensors that it changes, and on new
memory in place of a tensor without content.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelfarm.client.loaders.variants import (
    GuardedKernel,
    LoadedVariant,
    address_holds,
    bind_variants,
)
from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Arg, Node, TensorType, contiguous_strides
from kernelfarm.ir.triton.node import check_node, written_arguments
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer

_FLOAT_BITS: Mapping[DType, tuple[str, str]] = {DType.F32: ("<f", "<I"), DType.F64: ("<d", "<q")}


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Memory without content that each launch gets."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def made(self, device: torch.device) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)


class UserKernelLaunch:
    """One node's kernel, bound to the sizes of a layout.

    A call takes the tensors of the node's arguments in order, and a stream; it returns the tensors
    that the kernel changed. `extents` are the elements of the buffers that they are in.
    """

    def __init__(
        self,
        node: Node,
        variants: Sequence[LoadedVariant],
        extents: Sequence[int],
        sizes: Mapping[str, int],
        program: BoundProgram,
    ) -> None:
        kernel = check_node(node)
        self._name = kernel.entry
        self._loader, self._device = program.loader, program.captured.device
        results = dict(zip(written_arguments(node), node.types, strict=True))
        pointers = [n for n, param in enumerate(kernel.launched) if isinstance(param, Pointer)]
        self._written = [pointers.index(position) for position in results]
        self._fresh = {
            pointers.index(n): _fresh(results[n], sizes) for n in results if node.args[n] is None
        }
        given = iter(extents)
        spans = [
            span_elems(self._fresh[n].shape, self._fresh[n].strides)
            if n in self._fresh
            else next(given)
            for n in range(len(pointers))
        ]
        scalars = [
            _scalar(arg, param.dtype, sizes)
            for param, arg in zip(kernel.launched, node.args, strict=True)
            if not isinstance(param, Pointer)
        ]
        grid = _grid(node, sizes)
        self._programs = math.prod(grid)
        self._variants = bind_variants(variants, spans, (*scalars, *grid))

    def __call__(self, tensors: Sequence[torch.Tensor], stream: int) -> tuple[torch.Tensor, ...]:
        """The changed tensors.

        Raises:
            UnavailableError: the device refuses the launch.
        """
        given = list(tensors)
        for number, fresh in self._fresh.items():
            given.insert(number, fresh.made(self._device))
        for number in self._written:
            if number not in self._fresh:
                given[number] = own_copy(given[number])
        addresses = [tensor.data_ptr() for tensor in given]
        variant = self._chosen(addresses)
        scratch = self._scratch(variant)
        if scratch is not None:
            addresses.append(scratch.data_ptr())
        table = (ctypes.c_uint64 * len(addresses))(*addresses)
        launch = variant.kernel(ctypes.addressof(table), stream)
        status = launch()
        if status:
            self._loader.failed(status, launch, self._name)
        return tuple(given[number] for number in self._written)

    def _chosen(self, addresses: Sequence[int]) -> GuardedKernel:
        return next(
            variant
            for variant in self._variants
            if all(address_holds(atom, addresses[int(atom.name)]) for atom in variant.guard)
        )

    def _scratch(self, variant: GuardedKernel) -> torch.Tensor | None:
        """The kernel's own memory; torch may reuse it for later work of the stream."""
        size_bytes = variant.scratch_bytes * self._programs
        if not size_bytes:
            return None
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)


def _fresh(tensor: TensorType, sizes: Mapping[str, int]) -> _Fresh:
    return _Fresh(*sized_layout(tensor, sizes), dtype_to_torch(tensor.dtype))


def span_elems(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last; 0 if there are none."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def sized_layout(
    tensor: TensorType, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides (in elements) of a type for these values of its symbols."""
    strides = contiguous_strides(tensor.shape) if tensor.strides is None else tensor.strides
    return (
        tuple(extent.evaluate(sizes) for extent in tensor.shape),
        tuple(stride.evaluate(sizes) for stride in strides),
    )


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own with the same strides, also if elements share an address."""
    shape, strides = tensor.shape, tensor.stride()
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    flat = tensor.as_strided((span_elems(shape, strides),), (1,)).clone()
    return flat.as_strided(shape, strides)


def _grid(node: Node, sizes: Mapping[str, int]) -> tuple[int, ...]:
    stated = node.attr("grid")
    assert isinstance(stated, tuple)  # checked with the node
    if not stated:
        raise InvalidGraphError("a user kernel without a grid; expected one to launch it")
    extents = [_size(extent, sizes) for extent in stated]
    return (*extents, *(1,) * (GRID_SIZES - len(extents)))


def _scalar(arg: Arg, dtype: DType, sizes: Mapping[str, int]) -> int:
    """A number as the launch passes it: floats by their bits, in the low bytes."""
    if dtype in _FLOAT_BITS:
        of_float, of_bits = _FLOAT_BITS[dtype]
        assert isinstance(arg, float)  # checked with the node
        return int(struct.unpack(of_bits, struct.pack(of_float, arg))[0])
    return _size(arg, sizes)


def _size(arg: Any, sizes: Mapping[str, int]) -> int:
    return int(as_expr(arg).evaluate(sizes)) if isinstance(arg, int) else int(arg.evaluate(sizes))
