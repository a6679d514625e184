"""Which traced values share memory, as eager's would: said by the trace's fake storages."""

from __future__ import annotations

import torch
from torch import fx

from kernelfarm.client.captured import UnsupportedGraphError

MEMORY_READERS = frozenset({"aten.as_strided", "aten.as_strided_scatter", "aten.as_strided_copy"})
"""Operators whose offset counts from the start of the storage, not of the operand."""

_OFFSET_PLACES = {"aten.as_strided": 3, "aten.as_strided_copy": 3, "aten.as_strided_scatter": 4}


class StorageMakers:
    """For each value of a trace the node that made its memory; views share their base's."""

    def __init__(self, graph: fx.Graph) -> None:
        self._makers: dict[int, fx.Node] = {}
        for node in graph.nodes:
            storage = _storage(node)
            if storage is not None:
                self._makers.setdefault(storage, node)

    def maker_of(self, node: fx.Node) -> fx.Node | None:
        """The first node with this memory; None for what is no tensor."""
        storage = _storage(node)
        return None if storage is None else self._makers[storage]


def read_from_makers(graph: fx.Graph, makers: StorageMakers) -> None:
    """Gives operators that address memory the value that made the memory, with explicit offsets.

    What they give is the same: it depends on the storage alone. But values that travel have
    elements and no storage, so it has to be the value that covers all of it.

    Raises:
        UnsupportedGraphError: no value of the graph covers the memory.
    """
    for node in graph.nodes:
        place = _OFFSET_PLACES.get(str(node.target).rpartition(".")[0])
        operand = node.args[0] if node.args else None
        if place is None or not isinstance(operand, fx.Node):
            continue
        maker = makers.maker_of(operand)
        if maker is None or maker is operand or maker.op != "call_function":
            continue
        if not begins_its_storage(maker):
            raise UnsupportedGraphError(f"node {node.name} reads memory that no value covers")
        offset = operand.meta["val"].storage_offset()
        if len(node.args) <= place and "storage_offset" not in node.kwargs:
            node.args = (*node.args, offset)
        node.replace_input_with(operand, maker)


def begins_its_storage(node: fx.Node) -> bool:
    """True if a value's first element is the first one of its memory."""
    offset = node.meta["val"].storage_offset()
    return isinstance(offset, int) and offset == 0


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)
