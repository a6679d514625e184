"""What a call returns, from the outputs of its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelfarm.client.captured import Captured, HandedOut
from kernelfarm.client.fast_torch import reinterpret_tensor

HandOut = Callable[[list[Any]], list[Any]]


def hand_out(captured: Captured, sizes: Mapping[str, int]) -> HandOut | None:
    """How outputs become what the module returns; None if they are that, in order."""
    wanted = captured.handed_out
    if wanted == tuple(HandedOut(number) for number in range(len(captured.graph.outputs))):
        return None
    pickers = [_picker(item, sizes) for item in wanted]
    return lambda outputs: [pick(outputs) for pick in pickers]


def _picker(item: HandedOut, sizes: Mapping[str, int]) -> Callable[[list[Any]], Any]:
    number, window = item.number, item.window
    if window is None:
        return lambda outputs: outputs[number]
    shape = tuple(extent.evaluate(sizes) for extent in window.shape)
    strides = tuple(stride.evaluate(sizes) for stride in window.strides)
    offset = window.offset.evaluate(sizes)
    return lambda outputs: reinterpret_tensor(outputs[number], shape, strides, offset)
