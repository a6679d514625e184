"""Which values are stored in memory, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelfarm.ir.algebra.expr import Expr
from optimizer_svc.analysis.graph_facts import GraphFacts
from optimizer_svc.analysis.storages import Storage
from optimizer_svc.analysis.strided_views import StridedView


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """A slice of a stored value, along `dim` from `start` on, which a nest of its own stores."""

    value: int
    dim: int
    start: Expr


@dataclass(frozen=True, slots=True)
class Materialization:
    """The values that are stored in memory.

    `members` are the values that nests compute, in graph order. `operand_views` maps operands of
    extern nodes, `output_views` has one entry for each output. A member in `slices` is stored in
    the memory of another value, which is complete when all its slices are. Values in `unrounded`
    stay in f32 unless they are stored. Those in `partial_sums` are stored by kernels of their own.
    Those in `row_cats` are stored row by row, each by the kernel that sums it. What reads those in
    `ends` is in other kernels. Those in `blocked` need not be in memory as a whole. Of those
    in `causal`, (..., queries, keys), nothing behind the number of its query counts in a row; of
    those in `turned_causal`, (..., keys, queries), nothing before the number of its key.
    `notes` are decisions for the report, one fact a line.
    """

    facts: GraphFacts
    storages: Mapping[int, Storage]
    members: tuple[int, ...]
    operand_views: Mapping[int, StridedView]
    output_views: tuple[StridedView | Expr | None, ...]
    slices: Mapping[int, StoredSlice] = field(default_factory=dict)
    unrounded: frozenset[int] = frozenset()
    partial_sums: frozenset[int] = frozenset()
    row_cats: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()
    causal: frozenset[int] = frozenset()
    turned_causal: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
