"""The outputs of a captured graph: returned values, and updates of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import ModuleOutput, UnsupportedGraphError
from kernelfarm.client.capture.graph_values import GraphValues
from kernelfarm.client.capture.output_aliases import ReturnedArguments, share_outputs
from kernelfarm.client.capture.storages import StorageMakers
from kernelfarm.ir.graph_ir import Arg, Input, TensorType, Update

COPY = torch.ops.aten.copy_.default
"""The operator that stores the new value of an input at the end of a traced module."""


@dataclass(frozen=True, slots=True)
class GraphOutputs:
    """The graph's outputs with their types (None for a plain value), and the module's outputs."""

    args: tuple[Arg, ...]
    types: tuple[TensorType | None, ...]
    updates: tuple[Update, ...]
    module_outputs: tuple[ModuleOutput, ...]


class OutputCollector:
    """Collects the copies into inputs, then the outputs, of one traced module.

    `written` maps positions of the module's outputs to the positions of the arguments in which they
    are stored. Unless `copies_arguments` is set, an output that shares memory with an argument is
    no output of the graph.
    """

    def __init__(
        self,
        graph: fx.Graph,
        values: GraphValues,
        makers: StorageMakers,
        written: Mapping[int, int],
        *,
        copies_arguments: bool = False,
    ) -> None:
        self._copies_arguments = copies_arguments
        self._arguments = graph.find_nodes(op="placeholder")
        self._values = values
        self._makers = makers
        self._written = written
        self._copies: list[tuple[fx.Node, fx.Node]] = []

    def add_copy(self, node: fx.Node) -> None:
        """Records a copy into an input.

        Raises:
            UnsupportedGraphError: it copies a number, or into another value.
        """
        into, value = node.args[:2]
        is_last = all(user.op == "output" for user in node.users)
        if not isinstance(into, fx.Node) or not isinstance(value, fx.Node):
            raise UnsupportedGraphError("writes a number to an argument; expected a tensor")
        if not is_last or into.op != "placeholder":
            raise UnsupportedGraphError("writes to a value; expected writes to inputs only")
        self._copies.append((into, value))

    def collect(self, node: fx.Node, inputs: Sequence[Input]) -> GraphOutputs:
        """The outputs of the module's output node; updates come after all other outputs."""
        returned = node.args[0]
        all_items = returned if isinstance(returned, tuple | list) else (returned,)
        stored = [
            (self._arguments[index], all_items[number]) for number, index in self._written.items()
        ]
        items = [item for number, item in enumerate(all_items) if number not in self._written]
        updated = {into for into, _ in (*stored, *self._copies)}
        kept = self._arguments if self._copies_arguments else updated
        written = [(i, v) for i, v in (*stored, *self._copies) if isinstance(v, fx.Node)]
        computed, shared = share_outputs(
            [item for item in items if not _is_copy(item)],
            self._makers,
            self._values.sizes,
            ReturnedArguments(self._arguments, kept, () if self._copies_arguments else written),
        )
        args = [self._values.arg(item) for item in computed]
        types = [self._output_type(item) for item in computed]
        updates = []
        for into, value in (*stored, *self._copies):
            updates.append(Update(len(args), self._input_number(into, inputs)))
            args.append(self._values.arg(value))
            types.append(self._values.tensor_type(into.meta["val"]))
        return GraphOutputs(
            tuple(args), tuple(types), tuple(updates), self._module_outputs(items, shared)
        )

    def _module_outputs(
        self, items: Sequence[Any], shared: Sequence[ModuleOutput]
    ) -> tuple[ModuleOutput, ...]:
        computed = iter(shared)
        # A module that returns a copy into an argument returns that argument.
        return tuple(
            ModuleOutput(argument=self._arguments.index(item.args[0]))
            if _is_copy(item)
            else next(computed)
            for item in items
        )

    def _input_number(self, node: fx.Node, inputs: Sequence[Input]) -> int:
        (number,) = self._values.numbers_of(node)
        return next(i for i, source in enumerate(inputs) if source.value == number)

    def _output_type(self, item: Any) -> TensorType | None:
        value = item.meta.get("val") if isinstance(item, fx.Node) else None
        return self._values.tensor_type(value) if isinstance(value, torch.Tensor) else None


def _is_copy(item: Any) -> bool:
    return isinstance(item, fx.Node) and item.target is COPY
