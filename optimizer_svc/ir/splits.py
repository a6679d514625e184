"""Which reductions of a graph are split into slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimizer_svc.analysis.slices import Split


@dataclass(frozen=True, slots=True)
class Splits:
    """The splits by the value of the reduction; `notes` are for the report, one fact a line."""

    by_value: Mapping[int, Split]
    notes: tuple[str, ...] = ()
