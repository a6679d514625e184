"""The inputs of a graph of Dynamo in an order of our own: that in which its nodes use them.

Dynamo lists inputs as the interpreter comes across them, and interpreters differ: under Python 3.12
the weights of a ViT stand in another order than under 3.11, so one model had two keys. What nodes
do, and in which order, is the same under both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import fx


class InputOrder:
    """A graph of Dynamo with its inputs in order (`module`), and callers who know the old order.

    Where the order changes, `module` is a copy: Dynamo reads the inputs of its own graph later, to
    call what was compiled.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        before = module.graph.find_nodes(op="placeholder")
        ordered = _with_their_sizes(_by_first_use(module.graph, before))
        number = {node: index for index, node in enumerate(before)}
        self._positions = None if ordered == before else tuple(number[node] for node in ordered)
        self.module = module if self._positions is None else _copy(module, ordered)

    def of(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Arguments in the old order, in that of `module`."""
        return arguments if self._positions is None else [arguments[i] for i in self._positions]

    def called_as_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of what `module` takes, for callers who know the old order."""
        if self._positions is None:
            return function
        in_order = itemgetter(*self._positions)  # of two inputs or more: one has no other order
        return lambda *arguments: function(*in_order(arguments))


def _by_first_use(graph: fx.Graph, inputs: list[fx.Node]) -> list[fx.Node]:
    """The inputs as nodes use them, then those that none uses."""
    used = (
        operand
        for node in graph.nodes
        for operand in node.all_input_nodes
        if operand.op == "placeholder"
    )
    return list(dict.fromkeys([*used, *inputs]))


def _with_their_sizes(inputs: list[fx.Node]) -> list[fx.Node]:
    """Inputs that are sizes come right before the first tensor that has them, as Dynamo puts them.

    AOT Autograd sees a size there before it is needed.
    """
    sizes = {str(_example(node)): node for node in inputs if _is_size(node)}
    ordered: dict[fx.Node, None] = {}
    for node in inputs:
        if _is_size(node):
            continue
        for symbol in _symbols(_example(node)):
            if symbol in sizes:
                ordered[sizes[symbol]] = None
        ordered[node] = None
    return list(dict.fromkeys([*ordered, *inputs]))


def _copy(module: fx.GraphModule, ordered: list[fx.Node]) -> fx.GraphModule:
    """The same graph with its inputs in this order, and all that Dynamo noted of it."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in ordered:
        copies[node] = graph.node_copy(node)
        copies[node].meta.pop("grapharg", None)  # the example, which Dynamo lets go of
        # AOT Autograd asks where an input comes from.
        copies[node]._dynamo_source = getattr(node, "_dynamo_source", None)
    rest = [node for node in module.graph.nodes if node.op != "placeholder"]
    for node in rest:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copied = fx.GraphModule(module, graph)
    for name, value in vars(module).items():
        copied.__dict__.setdefault(name, value)
    copied.meta = module.meta
    return copied


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _is_size(node: fx.Node) -> bool:
    return isinstance(_example(node), torch.SymInt)


def _symbols(example: Any) -> list[str]:
    if not isinstance(example, torch.Tensor):
        return []
    return [str(extent) for extent in (*example.shape, *example.stride())]
