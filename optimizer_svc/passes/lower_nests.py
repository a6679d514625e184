"""Lowers every materialized value to a loop nest."""

from __future__ import annotations

from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.nest import Nest
from optimizer_svc.lowering.lower_nest import lowered


def lower_nests(chosen: Materialization) -> tuple[Nest, ...]:
    """A nest for each member with elements, in graph order."""
    facts = chosen.facts
    values = (v for v in chosen.members if not is_empty(facts.types[v].shape))
    return tuple(lowered(chosen, value).nest for value in values)
