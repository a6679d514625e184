"""Computes the layouts of values again, after convolutions have begun to give channels last.

Each operator behind such a convolution runs once more on values without data. Operators that rely
on memory (views that do not fit, or reads of storages) get a copy in the layout that they were
traced with, and so does what the graph returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.storages import MEMORY_READERS
from kernelfarm.client.freezing.values import VIEWS_OF_AXES, FrozenValues, value_of
from kernelfarm.client.pytorch.private import enable_python_dispatcher

_aten = torch.ops.aten


class NotFrozenError(Exception):
    """A graph cannot be frozen; the message is the reason."""


def spread_layouts(values: FrozenValues, replaced: Mapping[fx.Node, torch.Tensor]) -> None:
    """Corrects the layouts of a graph's values; `replaced` has what new nodes replaced.

    Raises:
        NotFrozenError: an operator needs a layout that no copy gives.
    """
    spread = _Spread(values, replaced)
    with values.mode, enable_python_dispatcher():
        for node in [*values.graph.nodes]:
            spread.visit(node)


class _Spread:
    """`_traced` are the values of nodes whose layouts changed, as they were traced."""

    def __init__(self, values: FrozenValues, replaced: Mapping[fx.Node, torch.Tensor]) -> None:
        self._graph = values.graph
        self._new = frozenset(replaced)
        self._traced: dict[fx.Node, Any] = {
            node: before
            for node, before in replaced.items()
            if _layouts_of(before) != _layouts_of(node.meta["val"])
        }
        self._restored: dict[fx.Node, fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """Computes a node's layout again if those of its operands changed."""
        changed = [n for n in node.all_input_nodes if n in self._traced]
        if not changed or node in self._new:
            return
        if node.op == "output":
            self._restore_operands(node, changed)
            return
        before = node.meta["val"]
        if str(node.target).rpartition(".")[0] in MEMORY_READERS:
            self._restore_operands(node, changed)
            return
        try:
            after = self._computed(node)
        except (RuntimeError, ValueError) as error:
            if node.target not in VIEWS_OF_AXES:
                raise NotFrozenError(f"{node.target} takes no image channels last") from error
            self._restore_operands(node, changed)
            return
        if _layouts_of(after) != _layouts_of(before):
            node.meta["val"] = after
            self._traced[node] = before

    def _computed(self, node: fx.Node) -> Any:
        function: Any = node.target
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        return function(*args, **kwargs)

    def _restore_operands(self, node: fx.Node, changed: list[fx.Node]) -> None:
        for operand in changed:
            if isinstance(self._traced[operand], torch.Tensor):
                node.replace_input_with(operand, self._as_traced(operand))

    def _as_traced(self, operand: fx.Node) -> fx.Node:
        if operand not in self._restored:
            before = self._traced[operand]
            layout = _format_of(before)
            with self._graph.inserting_after(operand):
                copy = self._graph.call_function(
                    _aten.clone.default, (operand,), {"memory_format": layout}
                )
            copy.meta["val"] = torch.empty_like(before, memory_format=layout)
            copy.meta["stack_trace"] = operand.meta.get("stack_trace")
            self._restored[operand] = copy
        return self._restored[operand]


def _format_of(value: torch.Tensor) -> torch.memory_format:
    for layout in (torch.contiguous_format, torch.channels_last):
        fits = layout is torch.contiguous_format or value.dim() == 4
        if fits and value.is_contiguous(memory_format=layout):
            return layout
    raise NotFrozenError(f"a value of strides {tuple(value.stride())}")


def _layouts_of(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_layouts_of(item) for item in value]
    return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else None
