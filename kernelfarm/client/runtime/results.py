"""The results of a call: the program's outputs, and the module's outputs made from them."""

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
from kernelfarm.errors import InternalError
from kernelfarm.ir.graph_ir import TensorType
from kernelfarm.ir.program_ir import BufferKind


class ProgramOutputs:
    """Reads a program's outputs from the values of a call; those of `unread` are None."""

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
    """How a view is converted before it is returned; None if it is returned as it is."""
    # Later calls reuse the memory of these.
    if view.buffer.is_in_arena or view.buffer.kind is BufferKind.CONSTANT:
        return lambda tensor: _in_layout(tensor.clone(), result)
    if view.shape == result.shape and view.strides == result.strides:
        return None
    return lambda tensor: _in_layout(tensor, result)


def _in_layout(tensor: torch.Tensor, result: OutputLayout) -> torch.Tensor:
    if tensor.shape == result.shape:
        return in_strides(tensor, result.strides)
    out = torch.empty_strided(
        result.shape, result.strides, dtype=tensor.dtype, device=tensor.device
    )
    return out.copy_(tensor)


def in_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with these strides (in elements): itself, a view, or a copy."""
    if tensor.stride() == strides:
        return tensor
    if is_same_memory(tuple(tensor.shape), tensor.stride(), strides):
        return reinterpret_tensor(tensor, tuple(tensor.shape), strides, 0)
    out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return out.copy_(tensor)


MakeModuleOutputs = Callable[[list[Any], Sequence[Any]], list[Any]]
"""`(program's outputs, call's arguments)` -> the module's outputs."""


def module_outputs(captured: CapturedGraph, sizes: Mapping[str, int]) -> MakeModuleOutputs | None:
    """How the module's outputs are made from the program's; None if they are the same."""
    outputs = captured.module_outputs
    if outputs == tuple(ModuleOutput(number) for number in range(len(captured.graph.outputs))):
        return None
    pickers = [_picker(captured, item, sizes) for item in outputs]
    return lambda outputs, args: [pick(outputs, args) for pick in pickers]


def returned_arguments(captured: CapturedGraph) -> frozenset[int]:
    """The positions of the arguments that the module returns, or returns views of."""
    return frozenset(o.argument for o in captured.module_outputs if o.argument is not None)


_Picker = Callable[[list[Any], Sequence[Any]], Any]


def _picker(captured: CapturedGraph, item: ModuleOutput, sizes: Mapping[str, int]) -> _Picker:
    number, view, argument = item.number, item.view, item.argument
    if view is not None:
        shape = tuple(extent.evaluate(sizes) for extent in view.shape)
        strides = tuple(stride.evaluate(sizes) for stride in view.strides)
        offset = view.offset.evaluate(sizes)
        if argument is not None:
            traced = _argument_strides(captured, argument, sizes)
            return _argument_view(argument, traced, (shape, strides, offset))
        return lambda outputs, args: reinterpret_tensor(outputs[number], shape, strides, offset)
    if argument is not None:
        return lambda outputs, args: args[argument]
    return lambda outputs, args: outputs[number]


def _argument_strides(
    captured: CapturedGraph, argument: int, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """The strides that an argument had in the trace, in elements."""
    kind = captured.graph.inputs[captured.sources.index(argument)].kind
    if not isinstance(kind, TensorType) or kind.strides is None:
        raise InternalError(f"a view of argument {argument}, which is {kind!r}")
    return tuple(stride.evaluate(sizes) for stride in kind.strides)


def _argument_view(
    argument: int, traced: tuple[int, ...], window: tuple[tuple[int, ...], tuple[int, ...], int]
) -> _Picker:
    """The view of an argument, which counts the argument's changes in place as its own.

    So autograd refuses a backward call for a weight that was changed after the forward call.
    """
    shape, strides, offset = window

    def view(outputs: list[Any], args: Sequence[Any]) -> torch.Tensor:
        tensor = in_strides(args[argument].detach(), traced)
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    return view
