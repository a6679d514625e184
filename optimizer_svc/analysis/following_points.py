"""The pointwise prims behind a value, if nothing but they follow before the next stored value."""

from __future__ import annotations

from kernelfarm.ir.prims import CLIENT_OPS, SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts

_MAX_VISITED = 64


def following_points(facts: GraphFacts, value: int) -> frozenset[int]:
    """The results of pointwise prims that are computed from a value, directly or through others.

    They end at outputs and at operators of the framework. Empty if a reduction, a gather or the
    like is among what follows: its kernel computes the points before it. Empty, too, if much
    follows.
    """
    seen, pending, points = {value}, [value], set[int]()
    while pending:
        if len(seen) > _MAX_VISITED:
            return frozenset()
        for position in facts.consumers.get(pending.pop(), ()):
            spend()
            reader = facts.graph.nodes[position]
            if reader.op in CLIENT_OPS:
                continue
            if reader.op not in SCALAR_OPS and reader.op not in VIEW_OPS:
                return frozenset()
            fresh = [result for result in reader.results if result not in seen]
            seen.update(fresh)
            pending.extend(fresh)
            points.update(fresh if reader.op in SCALAR_OPS else ())
    return frozenset(points)
