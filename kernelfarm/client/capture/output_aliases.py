"""Outputs that share memory in eager mode, with each other or with arguments.

The program computes one of several outputs that share memory; the others are its views. It computes
none that share memory with an argument, such as the weights that a forward graph saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import ModuleOutput, OutputView
from kernelfarm.client.capture.sizes import SizeReader
from kernelfarm.client.capture.storages import StorageMakers, begins_its_storage, is_alike
from kernelfarm.ir.algebra.expr import ONE


@dataclass(frozen=True, slots=True)
class ReturnedArguments:
    """The arguments of a module, and those of which no output may be a view.

    `kept` are written by the graph. An output that reads one of them is computed. `written` has
    arguments with the values that are stored in them at the end.
    """

    arguments: Sequence[fx.Node]
    kept: Collection[fx.Node]
    written: Sequence[tuple[fx.Node, fx.Node]] = ()


def share_outputs(
    items: Sequence[Any],
    makers: StorageMakers,
    sizes: SizeReader,
    returned: ReturnedArguments,
) -> tuple[list[Any], tuple[ModuleOutput, ...]]:
    """The outputs to compute, and how each of the module's outputs is made from them.

    If several outputs share memory, only the value that allocated it is computed. An output that is
    an argument or a view of one is not computed.
    """
    bases = [_base(item, makers, sizes) for item in items]
    counts = Counter(base for base in bases if base is not None)
    computed: list[Any] = []
    numbers: dict[fx.Node, int] = {}
    outputs: list[ModuleOutput] = []
    for item, base in zip(items, bases, strict=True):
        argument = _argument(item, makers, sizes, returned)
        argument = argument or _written_argument(item, makers, sizes, returned)
        if argument is not None:
            outputs.append(argument)
            continue
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


def _argument(
    item: Any, makers: StorageMakers, sizes: SizeReader, returned: ReturnedArguments
) -> ModuleOutput | None:
    """An output as an argument or a view of one; None if it is neither, or must be computed."""
    source = makers.argument_of(item) if isinstance(item, fx.Node) else None
    if source is None or source in returned.kept or not is_alike(item, source):
        return None
    position = returned.arguments.index(source)
    if item is source:
        return ModuleOutput(argument=position)
    value = item.meta["val"]
    first = sizes.read(source.meta["val"].storage_offset())
    offset = sizes.read(value.storage_offset()) - first
    if offset.is_constant and offset.constant < 0:
        return None
    view = OutputView(sizes.read_all(value.shape), sizes.read_all(value.stride()), offset)
    return ModuleOutput(view=view, argument=position)


def _written_argument(
    item: Any, makers: StorageMakers, sizes: SizeReader, returned: ReturnedArguments
) -> ModuleOutput | None:
    """An output as a view of an argument that has its values by then; None if it is another one.

    Only for arguments that are at an offset in their memory. If sizes vary, PyTorch makes a view of
    the argument at the offset that the output has in its own memory, which would be another place.
    """
    maker = makers.maker_of(item) if isinstance(item, fx.Node) else None
    if maker is None:
        return None
    for into, value in returned.written:
        if item is value or makers.maker_of(value) is not maker or begins_its_storage(into):
            continue
        if is_alike(item, value) and _are_laid_out_alike(value, into, sizes):
            found, stored = item.meta["val"], value.meta["val"]
            offset = sizes.read(found.storage_offset()) - sizes.read(stored.storage_offset())
            view = OutputView(sizes.read_all(found.shape), sizes.read_all(found.stride()), offset)
            return ModuleOutput(view=view, argument=returned.arguments.index(into))
    return None


def _are_laid_out_alike(value: fx.Node, into: fx.Node, sizes: SizeReader) -> bool:
    made, stored = (node.meta["val"] for node in (value, into))
    return (
        made.dtype == stored.dtype
        and sizes.read_all(made.shape) == sizes.read_all(stored.shape)
        and sizes.read_all(made.stride()) == sizes.read_all(stored.stride())
    )


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
