"""Decides which attention kernels compute in place of the framework's.

With one query for each head, as in decoding, memory limits attention: each key and value is read
once. The framework's kernels on processors are made for blocks of queries; with one query of 16
bits they take many times as long as memory does.

With several queries, attention is two products of matrices for each head, which processors compute
in register tiles, and the softmax of the scores between them. The scores are in memory, so only
those of a limited size are computed by kernels.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, product_of
from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import AttentionFacts, TargetFacts
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands, outputs_read
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice

ATTENTION = (
    "aten.scaled_dot_product_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
)
"""The second one also returns log-sum-exps, for gradients."""
_AXES = 4


def choose_attention(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The attention of a graph that kernels compute, with what decided about each kind."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") in ATTENTION]
    if not nodes or target.attention is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    read = facts.consumers.keys() | set(outputs_read(graph))
    chosen: list[int] = []
    factors: set[int] = set()
    rounded: set[int] = set()
    notes: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        verdict = _refused(facts, node, target.attention)
        if verdict is None and not read.isdisjoint(node.results[1:]):
            verdict = Refused("whose log-sum-exps are read")
        if verdict is None:
            chosen.append(node.results[0])
            query, *others = operands(node)[:3]
            is_one = facts.types[query].shape[2] is ONE
            if not is_one:
                factors |= {query, *others}
                rounded |= _rounded(node, target.attention)
            notes[f"of {'one query' if is_one else 'several queries'} by kernels"] += 1
        else:
            notes[f"by the framework: {verdict.reason}"] += 1
    lines = sorted(notes, key=lambda line: not line.endswith("by kernels"))
    texts = tuple(f"attention: {notes[line]} {line}" for line in lines)
    return ContractionChoice(
        frozenset(chosen), frozenset(factors), rounded=frozenset(rounded), notes=texts
    )


def _rounded(node: Node, known: AttentionFacts) -> set[int]:
    """The result of a node whose shares are rounded."""
    is_rounded = node.types[0].dtype.value in known.rounded_shares
    return {node.results[0]} if is_rounded else set()


def _refused(facts: GraphFacts, node: Node, known: AttentionFacts) -> Refused | None:
    """Why the framework computes attention; None if kernels do."""
    if not isinstance(node.attr("scale"), float):
        return Refused("it has dropout, or a scale that varies")
    kinds = [facts.types[value] for value in operands(node)]
    if not _is_attention(kinds, node.types):
        return Refused("of other operands")
    if any(is_empty(kind.shape) for kind in kinds):
        return Refused("without scores or results")
    query, key = kinds[0], kinds[1]
    is_one = query.shape[2] is ONE
    if query.dtype.value not in (known.one_query if is_one else known.several_queries):
        return Refused(f"of {query.dtype.value}, for which kernels were not timed")
    sizes = (query.shape[1], query.shape[3], key.shape[1])
    if not all(size.is_constant and size.constant > 0 for size in sizes):
        return Refused("of a varying number of heads")
    return None if is_one else _several_refused(query, key, known)


def _several_refused(query: TensorType, key: TensorType, known: AttentionFacts) -> Refused | None:
    """Why the framework computes attention of several queries; None if kernels do."""
    scores = product_of([*query.shape[:3], key.shape[2]])
    if not scores.is_constant:
        return Refused("of several queries, with a varying number of scores")
    if query.shape[2].constant < known.least_queries:
        return Refused(f"of 2 to {known.least_queries - 1} queries")
    if scores.constant * DType.F32.itemsize_bytes > known.most_score_bytes:
        return Refused(f"with scores of more than {known.most_score_bytes} bytes")
    return None


def _is_attention(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if operands and result have the shapes of attention: the graph came from outside."""
    if len(kinds) not in (3, 4) or not results:
        return False
    query, key, value = kinds[:3]
    if any(kind.rank != _AXES for kind in (query, key, value)):
        return False
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    divides = heads.is_constant and groups.is_constant and groups.constant > 0
    return (
        len({kind.dtype for kind in kinds}) == 1
        and key.shape == (batch, groups, keys, width)
        and value.shape[:3] == (batch, groups, keys)
        and divides
        and heads.constant % groups.constant == 0
        and results[0].shape == (batch, heads, length, value.shape[3])
        and results[0].dtype is query.dtype
        and (len(kinds) == 3 or _is_mask(kinds[3], query, key))
    )


def _is_mask(mask: TensorType, query: TensorType, key: TensorType) -> bool:
    """True if a mask has an extent of the scores, or 1, along each of its axes."""
    scores = (*query.shape[:3], key.shape[2])
    if mask.rank > _AXES:
        return False
    last = scores[_AXES - mask.rank :]
    return all(own in (ONE, whole) for own, whole in zip(mask.shape, last, strict=True))
