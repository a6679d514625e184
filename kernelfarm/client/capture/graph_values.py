"""The values of a captured graph: their numbers, their types, and arguments that refer to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.sizes import SizeReader
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.client.pytorch.private import OpOverload
from kernelfarm.ir.graph_ir import Arg, Ref, TensorType

Numbers = tuple[int | None, ...]
"""The numbers of a node's results."""


class GraphValues:
    """Numbers values in the order of their appearance, and encodes the arguments of nodes.

    `devices` are the devices of all tensors that were encoded.
    """

    def __init__(self) -> None:
        self.sizes = SizeReader()
        self.devices: set[torch.device] = set()
        self._numbers: dict[fx.Node, Numbers] = {}
        self._next_number = 0

    def new_number(self) -> int:
        """The number of a new value."""
        self._next_number += 1
        return self._next_number - 1

    def number(self, node: fx.Node) -> int:
        """Numbers the only result of a node."""
        (number,) = self.number_results(node, 1)
        return number

    def number_results(self, node: fx.Node, count: int) -> tuple[int, ...]:
        """Numbers the results of a node."""
        results = tuple(self.new_number() for _ in range(count))
        self._numbers[node] = results
        return results

    def bind(self, node: fx.Node, numbers: Numbers) -> None:
        """States that a node's results are existing values."""
        self._numbers[node] = numbers

    def numbers_of(self, node: fx.Node) -> Numbers:
        """The numbers of a node's results."""
        return self._numbers[node]

    def tensor_type(self, value: torch.Tensor) -> TensorType:
        """The type of a tensor; records its device.

        Raises:
            UnsupportedGraphError: its layout is not strided.
            UnsupportedDTypeError: its element type cannot be encoded.
            InvalidGraphError: a size depends on data.
        """
        if value.layout is not torch.strided:
            raise UnsupportedGraphError(f"a tensor of layout {value.layout}; expected strided")
        if value.device.type != "cpu" or value.dim():
            self.devices.add(value.device)
        read = self.sizes.read_all
        return TensorType(dtype_from_torch(value.dtype), read(value.shape), read(value.stride()))

    def device(self) -> torch.device:
        """The one device of the graph; the CPU if the graph has no tensors with axes.

        Tensors without axes on the CPU may be operands on any device.

        Raises:
            UnsupportedGraphError: there are tensors on several devices.
        """
        if len(self.devices) > 1:
            names = sorted(str(d) for d in self.devices)
            raise UnsupportedGraphError(f"tensors on {' and '.join(names)}; expected one device")
        return next(iter(self.devices), torch.device("cpu"))

    def args(self, values: Iterable[Any]) -> tuple[Arg, ...]:
        """Several arguments of a node; see `arg`."""
        return tuple(self.arg(value) for value in values)

    def arg(self, value: Any) -> Arg:
        """An argument of a node: a reference to a value, a plain value, or a tuple of arguments.

        Raises:
            UnsupportedGraphError: it cannot be encoded.
            InvalidGraphError: a size depends on data.
        """
        if isinstance(value, fx.Node):
            return self._node_arg(value)
        if isinstance(value, list | tuple):
            return self.args(value)
        return self._plain(value)

    def _node_arg(self, node: fx.Node) -> Arg:
        numbers = self._numbers.get(node)
        if numbers is None:
            return self._plain(node.meta.get("val"))
        if len(numbers) != 1 or numbers[0] is None:
            raise UnsupportedGraphError(f"uses all results of {node.name}; expected one of them")
        return Ref(numbers[0])

    def _plain(self, value: Any) -> Arg:
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if isinstance(value, torch.SymInt):
            size = self.sizes.read(value)
            return size.as_int() if size.is_constant else size
        if isinstance(value, torch.dtype):
            return dtype_from_torch(value)
        if isinstance(value, torch.memory_format):
            return str(value).removeprefix("torch.")
        if isinstance(value, OpOverload):
            return str(value)
        if isinstance(value, torch.device):
            return None  # the graph is independent of the device
        raise UnsupportedGraphError(
            f"an argument of type {type(value).__name__}; expected tensors, numbers, text, "
            "element types, or lists of them"
        )
