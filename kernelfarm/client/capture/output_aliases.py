"""Outputs that share memory in eager mode: the program computes one, the others are its views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import ModuleOutput, OutputView
from kernelfarm.client.capture.sizes import SizeReader
from kernelfarm.client.capture.storages import StorageMakers, begins_its_storage, is_alike
from kernelfarm.ir.algebra.expr import ONE


def share_outputs(
    items: Sequence[Any], makers: StorageMakers, sizes: SizeReader
) -> tuple[list[Any], tuple[ModuleOutput, ...]]:
    """The outputs to compute, and how each of the module's outputs is made from them.

    If several outputs share memory, only the value that allocated it is computed. Views of inputs
    are not changed: AOT Autograd makes them itself.
    """
    bases = [_base(item, makers, sizes) for item in items]
    counts = Counter(base for base in bases if base is not None)
    computed: list[Any] = []
    numbers: dict[fx.Node, int] = {}
    outputs = []
    for item, base in zip(items, bases, strict=True):
        if base is None or counts[base] < 2:
            outputs.append(ModuleOutput(len(computed)))
            computed.append(item)
            continue
        if base not in numbers:
            numbers[base] = len(computed)
            computed.append(base)
        view = None if item is base else _window(item.meta["val"], sizes)
        outputs.append(ModuleOutput(numbers[base], view))
    return computed, tuple(outputs)


def _base(item: Any, makers: StorageMakers, sizes: SizeReader) -> fx.Node | None:
    """The computed value that an output equals or is a view of; None if there is none."""
    maker = makers.maker_of(item) if isinstance(item, fx.Node) else None
    if maker is None or maker.op != "call_function" or not begins_its_storage(maker):
        return None
    is_window = is_alike(item, maker) and _covers_its_storage(maker.meta["val"], sizes)
    return maker if is_window else None


def _covers_its_storage(value: torch.Tensor, sizes: SizeReader) -> bool:
    last = ONE
    for extent, stride in zip(
        sizes.read_all(value.shape), sizes.read_all(value.stride()), strict=True
    ):
        last = last + (extent - ONE) * stride
    return last * value.element_size() is sizes.read(value.untyped_storage().nbytes())


def _window(value: torch.Tensor, sizes: SizeReader) -> OutputView:
    read = sizes.read_all
    return OutputView(read(value.shape), read(value.stride()), sizes.read(value.storage_offset()))
