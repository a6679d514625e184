"""Nests that became kernels in the making, in their order, and why others did not."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Node
from optimizer_svc.ir.group import Group


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two neighbouring groups are two kernels; each is named by a value that it makes."""

    first: int
    second: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """Kernels in the making and extern nodes in an order that respects all dependences.

    `steps` holds groups and extern nodes; `stored` the values that somebody needs in memory.
    """

    steps: tuple[Group | Node, ...]
    stored: frozenset[int]
    refusals: tuple[Refusal, ...]
    nests: int
