"""Who reads the scores of attention.

Scores that a causal mask hides need not be computed if the attention that hides them alone reads
them. A model may compute equal ones itself: then both are one value.
"""

from __future__ import annotations

from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import REDUCE_OPS, GraphFacts, outputs_read


def are_read_by_one(facts: GraphFacts, value: int) -> bool:
    """True if what is computed from a value, up to reductions, is of its own captured node."""
    own = facts.producers.get(value)
    seen, pending = {value}, [value]
    while pending and own is not None:
        for position in facts.consumers.get(pending.pop(), ()):
            spend()
            reader = facts.graph.nodes[position]
            if reader.origins != own.origins:
                return False
            if reader.op in REDUCE_OPS:
                continue
            fresh = {*reader.results} - seen
            seen |= fresh
            pending += sorted(fresh)
    return own is not None and seen.isdisjoint(outputs_read(facts.graph))
