"""Lets kernels compute on with values of 16 bits before they are rounded."""

from __future__ import annotations

from dataclasses import replace

from optimizer_svc.analysis.roundings import unrounded_values
from optimizer_svc.ir.materialization import Materialization


def drop_roundings(chosen: Materialization) -> Materialization:
    """The materialization with the values that stay in f32 unless they are stored."""
    unrounded = unrounded_values(chosen.facts, chosen.storages)
    if not unrounded:
        return chosen
    count = len(unrounded)
    note = f"roundings: kernels that do not store them keep {count} values of 16 bits in f32"
    return replace(chosen, unrounded=unrounded, notes=(*chosen.notes, note))
