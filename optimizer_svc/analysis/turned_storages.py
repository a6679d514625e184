"""Memory in the order of axes that a reader of a value wants.

Attention computes gradients of heads by batch, head and position; the products before it read them
by batch, position and head. If a kernel stores them in that order, the products read views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelfarm.ir.graph_ir import contiguous_strides
from optimizer_svc.analysis.graph_facts import GraphFacts, ints_attr
from optimizer_svc.analysis.storages import Storage, temporary_storage
from optimizer_svc.analysis.strided_views import reshaped_view
from optimizer_svc.analysis.verdicts import Refused


def turned_storage(facts: GraphFacts, chain: Sequence[int]) -> Storage | None:
    """Memory for the first value of a chain of views, row-major in the order of its first permute.

    None if no reshape and permute lead to such an order, if the type states a layout, or if the
    last axis would not stay the last: rows that other kernels read would be columns.
    """
    first, *views = chain
    own = temporary_storage(facts, first)
    if facts.types[first].strides is not None:
        return None
    for value in views:
        node = facts.producers[value]
        if node.op == "reshape":
            continue
        if node.op != "permute":
            return None
        dims = ints_attr(node, "dims")
        if not dims or dims[-1] != len(dims) - 1:
            return None
        steps = contiguous_strides(node.types[0].shape)
        before = replace(
            own.whole(),
            shape=tuple(node.types[0].shape[dims.index(axis)] for axis in range(len(dims))),
            strides=tuple(steps[dims.index(axis)] for axis in range(len(dims))),
        )
        view = reshaped_view(before, own.shape)
        return None if isinstance(view, Refused) else replace(own, strides=view.strides)
    return None
