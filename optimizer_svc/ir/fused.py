"""The result of fusion: groups in order, and why others were not merged."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Node
from optimizer_svc.ir.group import Group


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two groups were not merged; each is named by a value that it makes."""

    first: int
    second: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """Groups and extern nodes in an order that respects all dependences.

    `stored` are the values that are needed in memory, `nests` is the number of nests. `notes` are
    decisions for the report, one fact a line.
    """

    steps: tuple[Group | Node, ...]
    stored: frozenset[int]
    refusals: tuple[Refusal, ...]
    nests: int
    notes: tuple[str, ...] = ()
