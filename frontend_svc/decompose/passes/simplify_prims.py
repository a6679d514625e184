"""Applies local rules: composes views, drops neutral arithmetic, turns gathers into slices."""

from __future__ import annotations

from frontend_svc.decompose.report import NodeOutcome, PassNote
from frontend_svc.decompose.rewriting import RewritePass, RewriteResult, Rule, rebuild
from frontend_svc.decompose.rules import arithmetic, gathers, views
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Node

RULES: dict[str, tuple[Rule, ...]] = {
    "add": (arithmetic.add,),
    "bit_and": (arithmetic.conjunction,),
    "bit_or": (arithmetic.disjunction,),
    "broadcast_in_dim": (views.broadcast_in_dim,),
    "cat": (views.cat,),
    "convert": (arithmetic.convert,),
    "div": (arithmetic.div,),
    "flip": (views.flip,),
    "gather_nd": (gathers.gather_nd,),
    "logical_and": (arithmetic.conjunction,),
    "logical_not": (arithmetic.twice,),
    "logical_or": (arithmetic.disjunction,),
    "mul": (arithmetic.mul,),
    "neg": (arithmetic.twice,),
    "permute": (views.permute,),
    "reshape": (views.reshape,),
    "slice": (views.slice_,),
    "sub": (arithmetic.sub,),
    "take": (gathers.take,),
    "where": (arithmetic.where,),
}
"""The rules of each prim, in the order in which they are tried."""


def simplify_prims(graph: Graph, captured: Graph) -> RewriteResult:
    """The graph with every node rewritten by the first rule that applies to it."""
    notes: list[PassNote] = []

    def rule(builder: GraphBuilder, node: Node, operands: tuple[int, ...]) -> int | None:
        for candidate in RULES.get(node.op, ()):
            value = candidate(builder, node, operands)
            if value is not None:
                notes.append(
                    PassNote(node.origins, NodeOutcome.REMOVED, f"{node.op} changes nothing")
                )
                return value
        return None

    return RewriteResult(rebuild(graph, rule), tuple(notes))


SIMPLIFY_PRIMS = RewritePass("simplify_prims", simplify_prims)
