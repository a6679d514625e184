"""Removes nodes whose results nothing uses.

Extern nodes are removed too, unless they may have effects: random operators change the state of the
generator, a node without results exists for its effect, and a custom operator may have any effect.
"""

from __future__ import annotations

import dataclasses

from frontend_svc.decompose.report import NodeOutcome, PassNote
from frontend_svc.decompose.rewriting import RewritePass, RewriteResult
from frontend_svc.operators import extern_group_of
from kernelfarm.ir.graph_ir import Graph, Node, Ref, uses_of
from kernelfarm.ir.prims import PRIMS, PrimKind

_UNUSED = "nothing uses it"
_MERGED = "a later view contains it, or nothing uses it"


def remove_dead_code(graph: Graph, captured: Graph) -> RewriteResult:
    """The graph without unused nodes."""
    live = {output.value for output in graph.outputs if isinstance(output, Ref)}
    kept: list[Node] = []
    dropped: dict[int, str] = {}
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.results) and not _may_have_effects(node):
            is_view = PRIMS[node.op].kind is PrimKind.VIEW
            dropped.update(dict.fromkeys(node.origins, _MERGED if is_view else _UNUSED))
            continue
        kept.append(node)
        live.update(uses_of(node))
    if len(kept) == len(graph.nodes):
        return RewriteResult(graph)
    kept.reverse()
    alive = {origin for node in kept for origin in node.origins}
    notes = tuple(
        PassNote((origin,), NodeOutcome.REMOVED, dropped[origin])
        for origin in sorted(dropped.keys() - alive)
    )
    return RewriteResult(dataclasses.replace(graph, nodes=tuple(kept)), notes)


def _may_have_effects(node: Node) -> bool:
    if node.op != "extern":
        return False
    group = extern_group_of(str(node.attr("op")))
    return not node.results or group is None or group.has_effects


REMOVE_DEAD_CODE = RewritePass("remove_dead_code", remove_dead_code)
