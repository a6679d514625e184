"""What follows a value in a graph: pointwise prims alone, or a reduction over its rows."""

from __future__ import annotations

from collections.abc import Collection

from kernelfarm.ir.prims import CLIENT_OPS, SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import REDUCE_OPS, VIEW_OPS, GraphFacts, ints_attr

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


def are_points_next(facts: GraphFacts, value: int, returned: Collection[int]) -> bool:
    """True if pointwise prims read a value, and what they compute from it is stored.

    An operator of the framework reads that, or it is an output, one of `returned`. Reductions and
    what moves elements, such as padding, compute the points before them in kernels of their own.
    """
    seen, pending, found = {value}, [value], False
    while pending:
        if len(seen) > _MAX_VISITED:
            return False
        for position in facts.consumers.get(pending.pop(), ()):
            spend()
            reader = facts.graph.nodes[position]
            if reader.op in CLIENT_OPS:
                continue
            if reader.op not in SCALAR_OPS and reader.op not in VIEW_OPS:
                return False
            found |= reader.op in SCALAR_OPS and reader.op != "convert"
            for made in {*reader.results} - seen:
                seen.add(made)
                if made not in returned and not _is_read_by_framework(facts, made):
                    pending.append(made)
    return found


def _is_read_by_framework(facts: GraphFacts, value: int) -> bool:
    readers = facts.consumers.get(value, ())
    spend(len(readers))
    return any(facts.graph.nodes[position].op in CLIENT_OPS for position in readers)


def are_rows_reduced(facts: GraphFacts, value: int) -> bool:
    """True if the first axis of a value, or of points that are computed from it, is reduced.

    A kernel that computes sums of the value's own cannot compute such a reduction, too.
    """
    seen, pending = {value}, [value]
    while pending and len(seen) <= _MAX_VISITED:
        for position in facts.consumers.get(pending.pop(), ()):
            spend()
            reader = facts.graph.nodes[position]
            if reader.op in REDUCE_OPS and 0 in ints_attr(reader, "dims"):
                return True
            if reader.op in SCALAR_OPS:
                fresh = [result for result in reader.results if result not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return False
