"""Decides which batched products of matrices kernels compute in place of the framework's library.

Processors compute those of f32 in register tiles, with what follows them.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import BatchedProductFacts, TargetFacts
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice

BATCHED_PRODUCT = "aten.bmm.default"
_RANK = 3


def choose_batched_products(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The batched products that kernels compute, and why they do not compute the others."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") == BATCHED_PRODUCT]
    if not nodes or target.batched_products is None:
        return ContractionChoice()
    types = graph_facts(graph).types
    results: set[int] = set()
    factors: set[int] = set()
    refused: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        kinds = [types[value] for value in operands(node)]
        verdict = _refused(kinds, node, target.batched_products)
        if verdict is None:
            results.add(node.results[0])
            factors.update(operands(node))
        else:
            refused[verdict.reason] += 1
    notes = [f"batched products: {len(results)} by kernels"] if results else []
    notes += [
        f"batched products: {count} by the framework: {why}" for why, count in refused.items()
    ]
    return ContractionChoice(frozenset(results), frozenset(factors), notes=tuple(notes))


def _refused(kinds: list[TensorType], node: Node, known: BatchedProductFacts) -> Refused | None:
    """Why the framework computes a batched product; None if kernels do."""
    if not _is_product(kinds, node.types):
        return Refused("of other operands")
    (left, right), (result,) = kinds, node.types
    if result.dtype.value not in known.types:
        return Refused(f"of {result.dtype.value}, for which kernels were not timed")
    if is_empty(result.shape) or is_empty(left.shape):
        return Refused("without terms or results")
    sides = (left.shape[1], right.shape[2])
    if any(side.is_constant and side.constant < known.least_extent for side in sides):
        return Refused(f"of fewer than {known.least_extent} rows or columns")
    return None


def _is_product(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if shapes and types are those of batched products: the graph came from outside."""
    if len(kinds) != 2 or len(results) != 1:
        return False
    (left, right), (result,) = kinds, results
    if any(kind.rank != _RANK for kind in (left, right, result)):
        return False
    (batches, rows, inner), (others, terms, columns) = left.shape, right.shape
    return (
        batches is others
        and inner is terms
        and result.shape == (batches, rows, columns)
        and left.dtype is right.dtype is result.dtype
    )
