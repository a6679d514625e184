"""Decides which reductions are split into slices that are reduced in parallel."""

from __future__ import annotations

from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.extents import likely_sizes
from optimizer_svc.analysis.graph_facts import REDUCE_OPS, graph_facts
from optimizer_svc.analysis.slices import Split, choose_split
from optimizer_svc.ir.splits import Splits


def choose_splits(graph: Graph, target: TargetFacts) -> Splits:
    """The splits of a graph's reductions for a target, each with its reason."""
    reductions = [node for node in graph.nodes if node.op in REDUCE_OPS]
    if target.memory.saturating_programs is None or not reductions:
        return Splits({})
    facts = graph_facts(graph)
    likely = likely_sizes(graph.symbols)
    found: dict[int, Split] = {}
    notes: dict[str, None] = {}
    for node in reductions:
        spend(8)
        split = choose_split(facts, node, target.memory, likely)
        if isinstance(split, Split):
            found[node.results[0]] = split
            notes[_note(graph, node, split)] = None
    return Splits(found, tuple(notes))


def _note(graph: Graph, node: Node, split: Split) -> str:
    known = [graph.origin_ops[n] for n in node.origins if n < len(graph.origin_ops)]
    names = ", ".join(name.removesuffix(".default") for name in known) or "a reduction"
    return (
        f"split: {node.op} of {names} ({', '.join(map(str, node.origins))}) in {split.slices}"
        f" slices: {split.reason}"
    )
