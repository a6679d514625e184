"""The frontend's pipeline as data: a captured ATen graph in, a Prims graph out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frontend_svc.decompose.import_aten import import_aten
from frontend_svc.decompose.passes.fold_constants import FOLD_CONSTANTS
from frontend_svc.decompose.passes.remove_dead_code import REMOVE_DEAD_CODE
from frontend_svc.decompose.passes.simplify_prims import SIMPLIFY_PRIMS
from frontend_svc.decompose.report import NodeReport, PassNote, summarize
from frontend_svc.decompose.rewriting import RewritePass
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.check_graph import ATEN_DIALECT, check_client_graph
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.work_budget import phase

PASSES: tuple[RewritePass, ...] = (
    # Folding first: what is constant needs no simplification.
    FOLD_CONSTANTS,
    SIMPLIFY_PRIMS,
    # Last: every pass before it leaves nodes that nothing uses any more.
    REMOVE_DEAD_CODE,
)
"""The passes after the import, in order. Equal values become one wherever a graph is built."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A Prims graph, and what became of each captured node."""

    graph: Graph
    report: tuple[NodeReport, ...]


def decompose_to_prims(
    graph: Graph, *, fallback_random: bool = False, max_sorted_elems: int | None = None
) -> Decomposition:
    """Decomposes a captured graph to Prims.

    With `fallback_random`, the framework runs every operator that draws random numbers. It also
    runs sorts of rows that may have more than `max_sorted_elems` elements (a fact of the target),
    unless that is None.
    Inputs and outputs keep their positions, and output types their binding strides.

    Raises:
        InvalidGraphError: the graph breaks a rule; names the node, what was seen and expected.
        WorkBudgetError: the request's budget of steps is spent.
    """
    if graph.dialect != ATEN_DIALECT:
        raise InvalidGraphError(f"a graph of dialect {graph.dialect!r}; expected {ATEN_DIALECT!r}")
    with phase("decompose"):
        check_client_graph(graph)
        imported = import_aten(
            graph, fallback_random=fallback_random, max_sorted_elems=max_sorted_elems
        )
    lowered = imported.graph
    notes: list[PassNote] = []
    for step in PASSES:
        with phase(step.name):
            rewritten = step.rewrite(lowered, graph)
        lowered = rewritten.graph
        notes.extend(rewritten.notes)
    origin_ops = tuple(node.op for node in graph.nodes)
    lowered = replace(lowered, origin_ops=origin_ops, updates=graph.updates)
    return Decomposition(lowered, summarize(graph, lowered, notes, imported.externs))
