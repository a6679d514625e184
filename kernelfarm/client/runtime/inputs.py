"""Collects the tensors that a plan reads, in the layouts that it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.picks import picker
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.views import is_same_memory
from kernelfarm.errors import CallerError, InternalError, InvalidGraphError
from kernelfarm.ir.graph_ir import Constant, TensorType
from kernelfarm.ir.program_ir import BufferKind


class InputReader:
    """Reads inputs from a call's arguments and from the tensors that the module holds.

    Dynamo guards the shapes and element types of its arguments. Strides are checked here, because
    with wrong strides kernels would read outside a tensor. With `is_checked`, shapes and element
    types are checked here, too.
    """

    def __init__(self, program: BoundProgram, layout: Layout, *, is_checked: bool = False) -> None:
        captured = program.captured
        inputs = captured.graph.inputs
        constants = [i for i, source in enumerate(inputs) if isinstance(source.kind, Constant)]
        self._kinds: list[TensorType] = []
        self._positions: list[int] = []
        self._held: list[torch.Tensor | None] = []
        for buffer in layout.read:
            is_input = buffer.kind is BufferKind.INPUT
            number = buffer.position if is_input else constants[buffer.position]
            kind = inputs[number].kind
            source = captured.sources[number]
            self._kinds.append(kind.type if isinstance(kind, Constant) else _tensor(kind))
            self._positions.append(source if isinstance(source, int) else -1)
            held = None if isinstance(source, int) else source
            is_constant = isinstance(kind, Constant)
            self._held.append(_resting(held, captured.device) if is_constant else held)
        self._shapes = [
            tuple(e.evaluate(layout.traced_sizes) for e in k.shape) for k in self._kinds
        ]
        self._strides = [
            tuple(e.evaluate(layout.traced_sizes) for e in k.strides or ()) for k in self._kinds
        ]
        self._device = captured.device
        self._is_cpu = captured.device.type == "cpu"
        self._is_checked = is_checked
        self._pick = self._picker()
        # A packed tensor has no strides, and only operators that packed it for themselves read it.
        packed = captured.packed
        self._strided = [i for i, index in enumerate(self._positions) if index not in packed]
        self._expected = [self._strides[i] for i in self._strided]
        self._has_packed = len(self._strided) != len(self._positions)
        negated = captured.negated
        self._negated = [i for i, index in enumerate(self._positions) if index in negated]
        # Tensors without axes may be on the CPU; Dynamo passes all others on the right device.
        self._may_lie_elsewhere = [
            i
            for i, shape in enumerate(self._shapes)
            if not self._is_cpu and (is_checked or not shape)
        ]

    def read(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """One tensor for each buffer that the plan reads, with the strides of the graph's input."""
        tensors = self._pick(args)
        for number in self._negated:  # kernels ignore lazy negation
            tensors[number] = tensors[number].resolve_neg()
        for number in self._may_lie_elsewhere:
            if tensors[number].device != self._device:
                tensors[number] = tensors[number].to(self._device)
        strided = [tensors[i] for i in self._strided] if self._has_packed else tensors
        if self._is_checked or [tensor.stride() for tensor in strided] != self._expected:
            for number in self._strided:
                tensors[number] = self._laid_out(number, tensors[number])
        return tensors

    def layouts(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shape and strides (in elements) of each tensor of `read`, in its order."""
        return list(zip(self._shapes, self._strides, strict=True))

    def _picker(self) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
        positions, held = self._positions, self._held
        if any(tensor is not None for tensor in held):
            pairs = list(zip(positions, held, strict=True))
            return lambda args: [args[p] if t is None else t for p, t in pairs]
        pick = picker(positions)
        return lambda args: [*pick(args)]

    def _laid_out(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        shape, strides = self._shapes[number], self._strides[number]
        dtype = dtype_to_torch(self._kinds[number].dtype)
        if tensor.shape != shape or tensor.dtype is not dtype:
            raise CallerError(
                f"input {self._positions[number]} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"this program was compiled for {dtype} {shape}"
            )
        if is_same_memory(shape, tensor.stride(), strides):
            return tensor
        copy = torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device)
        return copy.copy_(tensor)


def input_layouts(
    program: BoundProgram, layout: Layout
) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shape and strides (in elements) of the tensors of an `InputReader`, by buffer index.

    Raises:
        InvalidGraphError: the plan assumes that an input is larger than it is.
    """
    found = InputReader(program, layout).layouts()
    for buffer, (shape, strides) in zip(layout.read, found, strict=True):
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if 0 not in shape and buffer.size_elems > span:
            raise InvalidGraphError(
                f"plan: buffer {buffer.name} of {buffer.size_elems} elements; the input spans"
                f" {span}"
            )
    return {buffer.index: known for buffer, known in zip(layout.read, found, strict=True)}


def _resting(constant: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """A constant as calls read it: a number lies on the device, so that no call has to move it.

    A CUDA graph could not record that move. Other constants have to be where they were traced.
    """
    if constant is None:
        return None
    return constant.contiguous() if constant.dim() else constant.to(device)


def _tensor(kind: TensorType | str | Constant) -> TensorType:
    if not isinstance(kind, TensorType):
        raise InternalError(f"the plan reads input {kind!r} as a tensor")
    return kind
