"""What a call returns, from the outputs of its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelfarm.client.captured import Captured, HandedOut
from kernelfarm.client.fast_torch import reinterpret_tensor

HandOut = Callable[[list[Any], Sequence[Any]], list[Any]]
"""What the module returns, from the program's outputs and the call's arguments."""


def hand_out(captured: Captured, sizes: Mapping[str, int]) -> HandOut | None:
    """How outputs become what the module returns; None if they are that, in order."""
    wanted = captured.handed_out
    if wanted == tuple(HandedOut(number) for number in range(len(captured.graph.outputs))):
        return None
    pickers = [_picker(item, sizes) for item in wanted]
    return lambda outputs, args: [pick(outputs, args) for pick in pickers]


def _picker(item: HandedOut, sizes: Mapping[str, int]) -> Callable[[list[Any], Sequence[Any]], Any]:
    number, window, argument = item.number, item.window, item.argument
    if argument is not None:
        return lambda outputs, args: args[argument]
    if window is None:
        return lambda outputs, args: outputs[number]
    shape = tuple(extent.evaluate(sizes) for extent in window.shape)
    strides = tuple(stride.evaluate(sizes) for stride in window.strides)
    offset = window.offset.evaluate(sizes)
    return lambda outputs, args: reinterpret_tensor(outputs[number], shape, strides, offset)
