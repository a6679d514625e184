"""Which attention of a graph kernels compute instead of the framework's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The results of the extern nodes that become prims.

    `factors` are what is multiplied in tiles, which memory must hold; `notes` are for the report.
    """

    results: frozenset[int] = frozenset()
    factors: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
