"""The frontend's pipeline as data: from a captured ATen graph to a Prims graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frontend_svc.decompose.import_aten import import_aten
from frontend_svc.decompose.passes.fold_constants import FOLD_CONSTANTS
from frontend_svc.decompose.passes.remove_dead_code import REMOVE_DEAD_CODE
from frontend_svc.decompose.passes.simplify_prims import SIMPLIFY_PRIMS
from frontend_svc.decompose.report import NodeReport, PassNote, summarize
from frontend_svc.decompose.rewriting import RewritePass
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.work_budget import phase

PASSES: tuple[RewritePass, ...] = (
    # First: constants need no simplification.
    FOLD_CONSTANTS,
    SIMPLIFY_PRIMS,
    # Last: the earlier passes leave nodes that nothing uses.
    REMOVE_DEAD_CODE,
)
"""The passes after the import, in order. Building a graph merges equal values."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A Prims graph, and the outcome of each captured node."""

    graph: Graph
    report: tuple[NodeReport, ...]


def decompose_to_prims(
    graph: Graph,
    *,
    fallback_random: bool = False,
    max_sorted_elems: int | None = None,
    needs_fixed_order: bool = False,
) -> Decomposition:
    """Decomposes a captured graph to Prims.

    The graph passed `check_client_graph`, as every decoded request did. With `fallback_random`, the
    framework runs every operator that draws random numbers. It also runs sorts of rows that may
    have more than `max_sorted_elems` elements (a fact of the target), unless that is None. With
    `needs_fixed_order`, it runs operators whose kernels would update elements in an order on which
    the result depends: the request is deterministic, and the target has no order of updates.
    Inputs and outputs keep their positions, and output types keep their binding strides.

    Raises:
        InvalidGraphError: a node contradicts its operator; names the node, what was seen and what
            was expected.
        WorkBudgetError: the request's budget of steps is spent.
    """
    with phase("decompose"):
        imported = import_aten(
            graph,
            fallback_random=fallback_random,
            max_sorted_elems=max_sorted_elems,
            needs_fixed_order=needs_fixed_order,
        )
    prims = imported.graph
    notes: list[PassNote] = []
    for step in PASSES:
        with phase(step.name):
            rewritten = step.rewrite(prims, graph)
        prims = rewritten.graph
        notes.extend(rewritten.notes)
    origin_ops = tuple(node.op for node in graph.nodes)
    prims = replace(
        prims, origin_ops=origin_ops, updates=graph.updates, kernel_hints=graph.kernel_hints
    )
    return Decomposition(prims, summarize(graph, prims, notes, imported.externs))
