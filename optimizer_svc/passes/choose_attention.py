"""Decides which attention kernels compute: that of one query for each head, as in decoding.

Memory limits it: each key and value is read once. The framework's kernels on processors are made
for blocks of queries; with one query of 16 bits they take many times as long as memory does.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands, outputs_read
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.attention import AttentionChoice

ATTENTION = (
    "aten.scaled_dot_product_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
)
"""The second one also returns log-sum-exps, for gradients."""
_AXES = 4


def choose_attention(graph: Graph, target: TargetFacts) -> AttentionChoice:
    """The attention of a graph that kernels compute, with what decided about each kind."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") in ATTENTION]
    if not nodes or not target.attends_one_query:
        return AttentionChoice(frozenset())
    facts = graph_facts(graph)
    read = facts.consumers.keys() | set(outputs_read(graph))
    chosen: list[int] = []
    refused: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        verdict = _refused(facts, node, target)
        if verdict is None and not read.isdisjoint(node.results[1:]):
            verdict = Refused("whose log-sum-exps are read")
        if verdict is None:
            chosen.append(node.results[0])
        else:
            refused[verdict.reason] += 1
    notes = [f"attention: {len(chosen)} of one query by kernels"] if chosen else []
    notes += [f"attention: {count} by the framework: {why}" for why, count in refused.items()]
    return AttentionChoice(frozenset(chosen), tuple(notes))


def _refused(facts: GraphFacts, node: Node, target: TargetFacts) -> Refused | None:
    """Why the framework computes attention; None if kernels do."""
    if not isinstance(node.attr("scale"), float):
        return Refused("it has dropout, a causal mask or a scale that varies")
    kinds = [facts.types[value] for value in operands(node)]
    if not _is_attention(kinds, node.types):
        return Refused("of other operands")
    query, key = kinds[0], kinds[1]
    if query.shape[2] is not ONE:
        return Refused("of several queries")
    if query.dtype.value not in target.attends_one_query:
        return Refused(f"of {query.dtype.value}, for which kernels were not timed")
    sizes = (query.shape[1], query.shape[3], key.shape[1])
    if not all(size.is_constant and size.constant > 0 for size in sizes):
        return Refused("of a varying number of heads")
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
