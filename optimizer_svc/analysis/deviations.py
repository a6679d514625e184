"""Finds sums of squared deviations from the mean of the same elements."""

from __future__ import annotations

from kernelfarm.ir.algebra.expr import product_of
from kernelfarm.ir.graph_ir import Node
from optimizer_svc.analysis.graph_facts import GraphFacts, constant_value, ints_attr, operands


def sum_of_deviations(facts: GraphFacts, node: Node) -> tuple[int, int] | None:
    """For sum((x - mean x)^2) the value x and its sum over the same axes; else None."""
    difference = _made_by(facts, operands(node)[0], "mul") if node.op == "sum" else None
    if difference is None or difference[0] != difference[1]:
        return None
    pair = _made_by(facts, difference[0], "sub")
    if pair is None:
        return None
    x, mean = pair[0], facts.producers.get(facts.base_of(pair[1]))
    if mean is None or mean.op not in ("mul", "div"):
        return None
    total, factor = operands(mean)
    points = product_of([facts.types[x].shape[dim] for dim in ints_attr(node, "dims")])
    number = constant_value(facts, factor)
    if not points.is_constant or not isinstance(number, int | float) or not number:
        return None
    count = points.constant
    is_mean = number == count if mean.op == "div" else number == 1 / count
    total = facts.base_of(total)
    made = facts.producers.get(total)
    is_own = made is not None and made.op == "sum" and operands(made) == (x,)
    if not is_mean or made is None or not is_own or made.attr("dims") != node.attr("dims"):
        return None
    return (x, total) if _is_kept_apart(facts, pair[1], node) else None


def _made_by(facts: GraphFacts, value: int, op: str) -> tuple[int, ...] | None:
    node = facts.producers.get(value)
    return operands(node) if node is not None and node.op == op else None


def _is_kept_apart(facts: GraphFacts, value: int, node: Node) -> bool:
    """True if the mean is broadcast along the reduced axes, each to its own row."""
    dims = ints_attr(node, "dims")
    shape = facts.types[value].shape
    spread = facts.producers.get(value)
    if spread is None or spread.op != "broadcast_in_dim":
        return False
    (small,) = operands(spread)
    kept = [extent for axis, extent in enumerate(shape) if axis not in dims]
    moved = ints_attr(spread, "dims")
    one_by_one = [
        extent
        for axis, extent in zip(moved, facts.types[small].shape, strict=True)
        if axis not in dims
    ]
    rest = product_of(list(facts.types[small].shape))
    return one_by_one == kept and rest is product_of(kept)
