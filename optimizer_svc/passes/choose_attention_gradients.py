"""Decides which gradients of attention processors compute in place of the framework."""
from __future__ import annotations

from collections import Counter

from kernelfarm.ir.graph_ir import Graph, Node, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.analysis.templates import ATTENTION_BACKWARD
from optimizer_svc.ir.contraction_choice import ContractionChoice, GradientValues

def choose_attention_gradients(graph: Graph, target: TargetFacts) -> ContractionChoice:
    nodes = [n for n in graph.nodes if n.attr("op") == ATTENTION_BACKWARD]
    if not nodes or target.attention is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    fresh = 1 + max([*facts.types, *(source.value for source in graph.inputs)])
    gradients, rounded, factors, strides = {}, set(), set(), {}
    for node in nodes:
        grad, output, sums, query, key, value, *masks = operands(node)
        made = GradientValues(fresh, fresh + 1, fresh + 2, fresh + 3)
        fresh += 4
        gradients[node.results[0]] = made
        factors |= {made.shares, made.scores, grad, query, key, value}
        if node.types[0].dtype.value in target.attention.rounded_shares:
            rounded.add(node.results[0])
            b, g, s, d = facts.types[key].shape
            strides[made.keys] = contiguous_strides((b, g, d, s))
            factors |= {made.keys, made.queries}
    return ContractionChoice(frozenset(gradients), frozenset(factors), rounded=frozenset(rounded), gradients=gradients, strides=strides)
