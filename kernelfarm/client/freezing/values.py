"""Which values of a traced graph depend on frozen parameters and buffers alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.pytorch.private import FakeTensorMode, OpOverload, has_effects
from kernelfarm.client.pytorch.private.operators import schema_of

_CPU = torch.device("cpu")

LARGE_BYTES = 64 * 2**20
"""A larger result is computed once only if it is no larger than what it is computed from."""


VIEWS_OF_AXES = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
"""Operators that give a value other axes in the same memory."""


class FrozenValues:
    """The nodes of one graph whose values cannot change while its parameters do not.

    `nodes` depend on parameters; nodes that depend on nothing, such as numbers, may be computed
    with them. Passes add nodes with `call`, which makes their values without data. What each call
    computes from `packed` parameters reads no other value that would be larger than what it is
    computed from, as scales of blocks that are spread over a weight.
    """

    def __init__(
        self,
        graph: fx.Graph,
        parameters: Iterable[fx.Node],
        mode: FakeTensorMode,
        packed: Iterable[fx.Node] = (),
    ) -> None:
        self.graph = graph
        self.mode = mode
        self.nodes = set(parameters)
        self.free: set[fx.Node] = set()
        self._scales = _scales(graph, self.nodes, set(packed))
        for node in graph.nodes:
            self._visit(node)

    def __contains__(self, node: object) -> bool:
        return node in self.nodes

    def is_static(self, node: object) -> bool:
        """True for a frozen value, and for one that depends on nothing."""
        return node in self.nodes or node in self.free

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], value: Any) -> fx.Node:
        """Adds a node that computes a frozen value with a function; `value` has no data."""
        made = self.graph.call_function(function, args)
        made.meta["val"] = value
        self.nodes.add(made)
        return made

    @property
    def gpu(self) -> torch.device | None:
        """The GPU that holds parameters; None without one."""
        values = (value_of(node) for node in self.nodes)
        devices = (v.device for v in values if isinstance(v, torch.Tensor))
        return next((device for device in devices if device.type == "cuda"), None)

    def empty(
        self, shape: Sequence[Any], dtype: torch.dtype, device: torch.device = _CPU
    ) -> torch.Tensor:
        """A value without data, row-major."""
        with self.mode:
            return torch.empty(tuple(shape), dtype=dtype, device=device)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            self.free.add(node)
            return
        if node.op != "call_function" or not _is_pure(node):
            return
        operands = node.all_input_nodes
        if not all(self.is_static(operand) for operand in operands):
            return
        if not any(operand in self.nodes for operand in operands):
            self.free.add(node)
        elif not _expands(node, 0 if node in self._scales else LARGE_BYTES):
            self.nodes.add(node)


def _scales(graph: fx.Graph, parameters: set[fx.Node], packed: set[fx.Node]) -> set[fx.Node]:
    """The values from which, and from packed parameters, other unchanging values are computed."""
    if not packed:
        return set()
    unchanging, unpacked = parameters | packed, set(packed)
    for node in graph.nodes:
        operands = node.all_input_nodes
        is_computed = node.op == "call_function" and _is_pure(node)
        if node.op != "get_attr" and not (is_computed and unchanging.issuperset(operands)):
            continue
        unchanging.add(node)
        if not unpacked.isdisjoint(operands):
            unpacked.add(node)
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_read = any(user in unpacked or user in found for user in node.users)
        if is_read and node in unchanging and node not in unpacked:
            found.add(node)
    return found


def value_of(node: Any) -> Any:
    """The value without data of a node; other arguments are themselves."""
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def argument(node: fx.Node, number: int, name: str, default: Any = None) -> Any:
    """An argument of an operator, by its position or its name."""
    if number < len(node.args):
        return node.args[number]
    return node.kwargs.get(name, default)


def sole_user(node: fx.Node) -> fx.Node | None:
    """The only node that uses a value; None if there are several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def is_view(node: fx.Node) -> bool:
    """True if a node's result shares memory with its operand, so that it costs nothing."""
    if not isinstance(node.target, OpOverload):
        return False
    return any(result.alias_info is not None for result in schema_of(node.target).returns)


def _is_pure(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, OpOverload) or has_effects(target):
        return False
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    return not is_random and not schema_of(target).is_mutable and _is_sized(value_of(node))


def _is_sized(value: Any) -> bool:
    """True if all extents of a value are numbers."""
    if isinstance(value, torch.Tensor):
        return all(isinstance(extent, int) for extent in value.shape)
    return isinstance(value, list | tuple) and all(_is_sized(item) for item in value)


def _expands(node: fx.Node, large_bytes: int) -> bool:
    """True if a result has more than so many bytes, and more than what it is computed from."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or is_view(node):
        return False
    operands = [value_of(operand) for operand in node.all_input_nodes]
    read = sum(_bytes(operand) for operand in operands if isinstance(operand, torch.Tensor))
    return value.numel() * value.element_size() > max(large_bytes, read)


def _bytes(value: torch.Tensor) -> int:
    """The memory of a value; an expanded one has less than its elements would take."""
    held = value.untyped_storage().nbytes()
    return min(held, value.numel() * value.element_size())
