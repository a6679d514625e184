"""Finds the traced values that share memory, by the fake storages of the trace."""

from __future__ import annotations

import torch
from torch import fx

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.pytorch.private.tracing import storage_identity

MEMORY_READERS = frozenset({"aten.as_strided", "aten.as_strided_scatter", "aten.as_strided_copy"})
"""Operators whose offset counts from the start of the storage, not of the operand."""

_OFFSET_POSITIONS = {"aten.as_strided": 3, "aten.as_strided_copy": 3, "aten.as_strided_scatter": 4}


class StorageMakers:
    """Maps each value of a trace to the node that allocated its memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes: dict[int, list[fx.Node]] = {}
        for node in graph.nodes:
            storage = _storage(node)
            if storage is not None:
                self._nodes.setdefault(storage, []).append(node)

    def maker_of(self, node: fx.Node) -> fx.Node | None:
        """The first node with this memory; None if the value is not a tensor."""
        storage = _storage(node)
        return None if storage is None else self._nodes[storage][0]

    def argument_of(self, node: fx.Node) -> fx.Node | None:
        """The argument that a value is or is a view of; None if there is none."""
        storage = _storage(node)
        while storage is not None and node.op == "call_function":
            sources = [source for source in node.all_input_nodes if _storage(source) == storage]
            if len(sources) != 1:
                return None
            node = sources[0]
        return node if storage is not None and node.op == "placeholder" else None

    def first_alike(self, node: fx.Node) -> fx.Node:
        """The first node that reads this memory with the same element type and sign as `node`."""
        storage = _storage(node)
        seen = () if storage is None else self._nodes[storage]
        return next((other for other in seen if is_alike(other, node)), node)


def read_from_makers(graph: fx.Graph, makers: StorageMakers) -> None:
    """Makes operators that address a storage read the value that allocated it, in place.

    The result is the same, because it depends on the storage only. A captured value has elements
    but no storage, so the operand must be the value that covers the whole storage. Offsets become
    explicit.

    Raises:
        UnsupportedGraphError: no value of the graph covers the memory.
    """
    for node in graph.nodes:
        index = _OFFSET_POSITIONS.get(str(node.target).rpartition(".")[0])
        operand = node.args[0] if node.args else None
        if index is None or not isinstance(operand, fx.Node):
            continue
        maker = makers.maker_of(operand)
        if maker is None or maker is operand:
            continue
        has_offset = len(node.args) > index or "storage_offset" in node.kwargs
        if maker.op != "call_function":
            if has_offset and index == _OFFSET_POSITIONS["aten.as_strided"]:
                _count_from_input(node, operand, maker)
            continue
        maker = makers.first_alike(operand)
        if not begins_its_storage(maker):
            raise UnsupportedGraphError(
                f"node {node.name} reads memory that no value of the graph covers"
            )
        offset = operand.meta["val"].storage_offset()
        if not has_offset:
            node.args = (*node.args, offset)
        node.replace_input_with(operand, maker)


def _count_from_input(node: fx.Node, operand: fx.Node, source: fx.Node) -> None:
    """Replaces a view of an input by the input: an explicit offset counts from the storage."""
    if not is_alike(operand, source):
        raise UnsupportedGraphError(
            f"node {node.name} reads the memory of an input as another element type"
        )
    node.replace_input_with(operand, source)


def is_alike(node: fx.Node, other: fx.Node) -> bool:
    """True if two values read their common memory in the same way: element type, conjugate, sign.

    They differ if one reads complex numbers as pairs of floats, or if conjugation or negation is
    lazy in one of them.
    """
    first, second = node.meta["val"], other.meta["val"]
    return (first.dtype, first.is_conj(), first.is_neg()) == (
        second.dtype,
        second.is_conj(),
        second.is_neg(),
    )


def begins_its_storage(node: fx.Node) -> bool:
    """True if a value's first element is the first one of its memory."""
    offset = node.meta["val"].storage_offset()
    return isinstance(offset, int) and offset == 0


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return storage_identity(value)
