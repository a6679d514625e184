"""Which points behind a contraction memory should hold, so that no other kernel computes them.

A kernel of a contraction computes the pointwise prims behind it. Reductions, windows and the like
compute the points before them in kernels of their own. If these points begin at a contraction, its
bare sums would be stored, in f32, and each such kernel would compute the points again. So the last
points before them are stored, as eager stores them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.prims import CLIENT_OPS, SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts, operands

_MAX_VISITED = 64


def last_points(facts: GraphFacts, value: int) -> frozenset[int]:
    """The points computed from a value alone, or the value, that others than points read.

    Behind them, nothing is followed. Empty if points end at operators of the framework and outputs,
    or if much follows.
    """
    found: set[int] = set()
    seen, pending = {value}, [value]
    while pending:
        if len(seen) > _MAX_VISITED:
            return frozenset()
        point = pending.pop()
        readers = list(_readers(facts, point))
        results = [result for reader in readers for result in reader.results]
        if all(reader.op in SCALAR_OPS for reader in readers) and all(
            facts.numel(result) is facts.numel(value) for result in results
        ):
            fresh = {*results} - seen
            seen |= fresh
            pending += sorted(fresh)
        else:
            found.add(point)
    return frozenset(found)


def points_that_meet(facts: GraphFacts, values: Collection[int]) -> frozenset[int]:
    """Points to store where those of several contractions meet: one kernel has one contraction.

    `values` are the results of the contractions. Of two that meet, the earlier one's are stored.
    """
    found: set[int] = set()
    owners: dict[int, int] = {value: value for value in values}
    for node in facts.graph.nodes:
        spend()
        if node.op not in SCALAR_OPS and node.op not in VIEW_OPS:
            continue
        owned = {v: owners[v] for v in operands(node) if v in owners}
        if not owned:
            continue
        last = max(owned.values(), key=facts.positions.__getitem__)
        if any(facts.numel(result) is not facts.numel(last) for result in node.results):
            continue
        owners |= dict.fromkeys(node.results, last)
        found |= {narrow_value(facts, v) for v, owner in owned.items() if owner != last}
    return frozenset(found)


def narrow_value(facts: GraphFacts, value: int) -> int:
    """What a value is a view of, or was converted from to a wider type."""
    while (node := facts.producers.get(value)) is not None:
        spend()
        if node.op not in VIEW_OPS and not _is_widening(facts, node):
            break
        (value,) = operands(node)
    return value


def _readers(facts: GraphFacts, value: int) -> Iterator[Node]:
    """What reads a value, also through views and conversions to wider types.

    The framework's operators read memory in any case.
    """
    pending = [value]
    while pending:
        for position in facts.consumers.get(pending.pop(), ()):
            spend()
            reader = facts.graph.nodes[position]
            if reader.op in VIEW_OPS or _is_widening(facts, reader):
                pending += reader.results
            elif reader.op not in CLIENT_OPS:
                yield reader


def _is_widening(facts: GraphFacts, node: Node) -> bool:
    if node.op != "convert":
        return False
    (operand,) = operands(node)
    return node.types[0].dtype.itemsize_bytes > facts.types[operand].dtype.itemsize_bytes
