"""Whether the readers of a value end in one node: one loop reads `x` in `x * sigmoid(x)`."""

from __future__ import annotations

import heapq
from collections.abc import Collection

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.prims import SCALAR_OPS
from optimizer_svc.analysis.graph_facts import GraphFacts, operands

MAX_STEPS = 16
"""The most nodes of one search, which runs for each value that several nodes read."""


def has_sole_reader(facts: GraphFacts, value: int, stored: Collection[int]) -> bool:
    """True if all readers lead, element by element, to one node, which reads one element for each.

    The value is then computed once for each element of that node, however many nodes read it, so
    nothing is computed twice if it is not stored.
    """
    pending = list(facts.consumers.get(value, ()))
    heapq.heapify(pending)
    for _ in range(MAX_STEPS):
        if len(pending) < 2:
            break
        position = heapq.heappop(pending)
        node = facts.graph.nodes[position]
        if node.op not in SCALAR_OPS or node.results[0] in stored:
            return False
        for reader in facts.consumers.get(node.results[0], ()):
            if reader not in pending:
                heapq.heappush(pending, reader)
    return len(pending) == 1 and _reads_one_element(facts.graph.nodes[pending[0]])


def _reads_one_element(node: Node) -> bool:
    """True if the node reads one element of its operands for each of its own."""
    return node.op in SCALAR_OPS or (node.op == "pad" and len(operands(node)) == 1)
