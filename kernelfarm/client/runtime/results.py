"""What a call returns: the outputs of its program, and what the module makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput
from kernelfarm.client.pytorch.tensors import reinterpret_tensor
from kernelfarm.client.runtime.layout import Layout, OutputLayout
from kernelfarm.client.runtime.picks import Form, Formed, picker
from kernelfarm.client.runtime.steps import StepBuilder
from kernelfarm.client.runtime.views import View, is_same_memory
from kernelfarm.ir.program_ir import BufferKind

REUSED_BUFFERS = (BufferKind.TEMPORARY, BufferKind.CONSTANT)
"""Memory that later calls use again: a result there is handed out as a copy."""


class ProgramOutputs:
    """The outputs of a program among the values of a call; None for those of `unread`."""

    def __init__(self, layout: Layout, builder: StepBuilder, unread: frozenset[int]) -> None:
        self._formed: list[Formed] = []
        indices = []
        for number, result in enumerate(layout.results):
            if number in unread or result.view is None:
                value = None if number in unread else result.value
                indices.append(builder.new_value(value))
                continue
            form = _form(result, result.view)
            found = builder.formed(result.view, form) if form else builder.value_index(result.view)
            index, formed = found
            indices.append(index)
            self._formed += formed
        self._pick = picker(indices)

    def read(self, values: list[Any]) -> list[Any]:
        """The outputs, in order."""
        for index, source, form in self._formed:
            values[index] = form(values[source])
        return [*self._pick(values)]


def _form(result: OutputLayout, view: View) -> Form | None:
    """What is made of a view before it is handed out; None: nothing."""
    if view.buffer.kind in REUSED_BUFFERS:
        return lambda tensor: _in_layout(tensor.clone(), result)
    if view.shape == result.shape and view.strides == result.strides:
        return None
    return lambda tensor: _in_layout(tensor, result)


def _in_layout(tensor: torch.Tensor, result: OutputLayout) -> torch.Tensor:
    if tensor.shape == result.shape:
        if tensor.stride() == result.strides:
            return tensor
        if is_same_memory(result.shape, tensor.stride(), result.strides):
            return reinterpret_tensor(tensor, result.shape, result.strides, 0)
    out = torch.empty_strided(
        result.shape, result.strides, dtype=tensor.dtype, device=tensor.device
    )
    return out.copy_(tensor)


MakeModuleOutputs = Callable[[list[Any], Sequence[Any]], list[Any]]
"""What the module returns, from the program's outputs and the call's arguments."""


def module_outputs(captured: CapturedGraph, sizes: Mapping[str, int]) -> MakeModuleOutputs | None:
    """How outputs become what the module returns; None if they are that, in order."""
    outputs = captured.module_outputs
    if outputs == tuple(ModuleOutput(number) for number in range(len(captured.graph.outputs))):
        return None
    pickers = [_picker(item, sizes) for item in outputs]
    return lambda outputs, args: [pick(outputs, args) for pick in pickers]


def _picker(
    item: ModuleOutput, sizes: Mapping[str, int]
) -> Callable[[list[Any], Sequence[Any]], Any]:
    number, view, argument = item.number, item.view, item.argument
    if argument is not None:
        return lambda outputs, args: args[argument]
    if view is None:
        return lambda outputs, args: outputs[number]
    shape = tuple(extent.evaluate(sizes) for extent in view.shape)
    strides = tuple(stride.evaluate(sizes) for stride in view.strides)
    offset = view.offset.evaluate(sizes)
    return lambda outputs, args: reinterpret_tensor(outputs[number], shape, strides, offset)
