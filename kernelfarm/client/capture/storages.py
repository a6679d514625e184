"""Which traced values share memory, as eager's would: said by the trace's fake storages."""

from __future__ import annotations

import torch
from torch import fx

from kernelfarm.client.capture.captured import UnsupportedGraphError

MEMORY_READERS = frozenset({"aten.as_strided", "aten.as_strided_scatter", "aten.as_strided_copy"})
"""Operators whose offset counts from the start of the storage, not of the operand."""

_OFFSET_POSITIONS = {"aten.as_strided": 3, "aten.as_strided_copy": 3, "aten.as_strided_scatter": 4}


class StorageMakers:
    """For each value of a trace the node that made its memory; views share their base's."""

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes: dict[int, list[fx.Node]] = {}
        for node in graph.nodes:
            storage = _storage(node)
            if storage is not None:
                self._nodes.setdefault(storage, []).append(node)

    def maker_of(self, node: fx.Node) -> fx.Node | None:
        """The first node with this memory; None for what is no tensor."""
        storage = _storage(node)
        return None if storage is None else self._nodes[storage][0]

    def first_alike(self, node: fx.Node) -> fx.Node:
        """The first node with this memory that sees the same elements there, if not the maker."""
        storage = _storage(node)
        seen = () if storage is None else self._nodes[storage]
        return next((other for other in seen if is_alike(other, node)), node)


def read_from_makers(graph: fx.Graph, makers: StorageMakers) -> None:
    """Gives operators that address memory the value that made the memory, with explicit offsets.

    What they give is the same: it depends on the storage alone. But values that travel have
    elements and no storage, so it has to be the value that covers all of it.

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
            raise UnsupportedGraphError(f"node {node.name} reads memory that no value covers")
        offset = operand.meta["val"].storage_offset()
        if not has_offset:
            node.args = (*node.args, offset)
        node.replace_input_with(operand, maker)


def _count_from_input(node: fx.Node, operand: fx.Node, source: fx.Node) -> None:
    """Takes the input itself for a view of it: a stated offset counts from the memory's start."""
    if not is_alike(operand, source):
        raise UnsupportedGraphError(f"node {node.name} reads memory of an input as another type")
    node.replace_input_with(operand, source)


def is_alike(node: fx.Node, other: fx.Node) -> bool:
    """True if two values of one memory read its elements alike: no pairs as numbers, no lazy sign.

    Complex numbers are seen as their parts too, and conjugates and negatives may be lazy.
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
    return int(value.untyped_storage()._cdata)
