"""Which attention of a graph kernels compute instead of the framework's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The results of the extern nodes that become prims; `notes` are for the report."""

    results: frozenset[int]
    notes: tuple[str, ...] = ()
