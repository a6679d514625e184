"""Lowers every materialized value to a loop nest of its own."""

from __future__ import annotations

from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.nest import Nest
from optimizer_svc.lowering.lower_nest import lowered


def lower_nests(chosen: Materialization) -> tuple[Nest, ...]:
    """One nest for each member, in graph order; values without elements have none."""
    facts = chosen.facts
    values = (v for v in chosen.members if not is_empty(facts.types[v].shape))
    return tuple(lowered(chosen, value).nest for value in values)
