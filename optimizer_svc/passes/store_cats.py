"""Splits readers of a cat of many pieces, so that each part reads one piece.

A value that selects from many pieces is split along the axis of the pieces: it becomes a cat of
slices of itself, and each slice has a nest of its own. In each nest only one piece of every cat is
left. A kernel then stores a piece directly in the cat's memory, with the pointwise work that
follows the cat. If a reader cannot be split (a reduction over the axis, for example), the cat
itself is stored.

So is a cat of the rows of a product, each of which has a sum of its own (`row_cats`): the kernel of
the sums stores each row there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr
from kernelfarm.ir.graph_ir import Constant, Node, TensorType
from kernelfarm.ir.program_ir import BufferKind
from optimizer_svc.analysis.cat_pieces import MAX_PIECES_SELECTED, is_many_pieces
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import (
    REDUCE_OPS,
    SCAN_OPS,
    SORT_OPS,
    GraphFacts,
    graph_facts,
    operands,
    references,
)
from optimizer_svc.analysis.storages import temporary_storage
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.materialization import Materialization, StoredSlice
from optimizer_svc.lowering.cat_splits import (
    SplitPoints,
    equal_split_points,
    merged_split_points,
    split_points_for,
)
from optimizer_svc.lowering.lower_nest import LoweredNest, lowered

_UNSPLIT = REDUCE_OPS | SCAN_OPS | SORT_OPS | {"scatter"}


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan for one member: its split points, and the cats to store, with the reasons."""

    splits: SplitPoints | None
    materialized: tuple[tuple[int, str], ...]


def store_cats(chosen: Materialization) -> Materialization:
    """The materialization in which no nest selects from more than a few pieces."""
    cats = [node for node in chosen.facts.graph.nodes if node.op == "cat"]
    if not cats:
        return chosen
    reasons: dict[int, str] = {}
    plans: dict[int, _Plan] = {}
    if any(is_many_pieces(chosen.facts, node) for node in cats):
        chosen, plans, reasons = _settled(chosen)
    for value in sorted(chosen.row_cats - plans.keys()):
        if _whole(chosen, value) is None:
            plans[value] = _Plan(_rows_of(chosen, value), ())
    notes = tuple(dict.fromkeys(_notes(chosen, cats, plans, reasons)))
    cuts = {value: plan.splits for value, plan in plans.items() if plan.splits is not None}
    return replace(_Splitter(chosen, cuts).result(), notes=notes)


def _settled(
    chosen: Materialization,
) -> tuple[Materialization, dict[int, _Plan], dict[int, str]]:
    """Stores cats until every reader of the others can be split."""
    reasons: dict[int, str] = {}
    while True:
        made = _made(chosen)
        plans = {value: _planned(chosen, value, made) for value in _readers_of_many(chosen)}
        materialized = dict(item for plan in plans.values() for item in plan.materialized)
        if not materialized:
            return chosen, plans, reasons
        reasons.update(materialized)
        facts = chosen.facts
        storages = {value: temporary_storage(facts, value) for value in materialized}
        members = sorted((*chosen.members, *materialized), key=lambda v: facts.positions[v])
        chosen = replace(chosen, storages={**chosen.storages, **storages}, members=tuple(members))


def _readers_of_many(chosen: Materialization) -> Iterator[int]:
    """The members whose nests would select from many pieces."""
    facts, stored = chosen.facts, chosen.storages
    members = set(chosen.members)
    holding: set[int] = set()
    for node in facts.graph.nodes:
        inlined = (value for value in operands(node) if value not in stored)
        if is_many_pieces(facts, node) or not holding.isdisjoint(inlined):
            holding.update(node.results)
            if node.results[0] in members and not is_empty(node.types[0].shape):
                yield node.results[0]


def _planned(chosen: Materialization, value: int, made: Collection[int]) -> _Plan:
    found = lowered(chosen, value)
    refusal = _whole(chosen, value)
    cuts: SplitPoints | None = None
    materialized: dict[int, str] = {}
    for selection in found.selections:
        here = refusal or split_points_for(found.nest, selection, found.bounds)
        joined = (
            here if cuts is None or isinstance(here, Refused) else merged_split_points(cuts, here)
        )
        if not isinstance(joined, Refused):
            cuts = joined
        elif selection.value != value:
            materialized.setdefault(selection.value, joined.reason)
    if materialized or cuts is None:
        return _Plan(None, tuple(materialized.items()))
    even = equal_split_points(cuts, chosen.facts.types[value].shape[cuts.dim])
    return _Plan(cuts if _splits_rows(found, even, made) else even, ())


def _rows_of(chosen: Materialization, value: int) -> SplitPoints:
    """The split points of a cat of rows."""
    count = chosen.facts.types[value].shape[0].constant
    return SplitPoints(0, tuple(as_expr(row) for row in range(1, count)))


def _splits_rows(found: LoweredNest, cuts: SplitPoints, made: Collection[int]) -> bool:
    """True if equal parts would split a piece that a kernel makes, and could store as a whole."""
    pieces = (piece for selection in found.selections for piece in selection.pieces)
    whole = (piece for piece in pieces if piece.value in made)
    return any(piece.limit - piece.start is not cuts.offsets[0] for piece in whole)


def _made(chosen: Materialization) -> frozenset[int]:
    """Values that kernels make, and values that are computed from them without a store."""
    stored, found = chosen.storages, set(chosen.members)
    for node in chosen.facts.graph.nodes:
        if node.op != "extern" and not found.isdisjoint(operands(node)):
            found.update(value for value in node.results if value not in stored)
    return frozenset(found)


def _whole(chosen: Materialization, value: int) -> Refused | None:
    """Why one nest must compute a member; None if it may be split."""
    facts, storage = chosen.facts, chosen.storages[value]
    op = facts.producers[value].op
    if op in _UNSPLIT:
        return Refused(f"its reader is a {op}")
    if storage.kind is BufferKind.INPUT and facts.consumers.get(_input_at(facts, storage.position)):
        # Each part would have to run after all readers of the old elements, also in other parts.
        return Refused("its reader updates an input that is read")
    return None


def _input_at(facts: GraphFacts, position: int) -> int:
    """The value of the input at a position among the inputs that are no constants."""
    given = [i.value for i in facts.graph.inputs if not isinstance(i.kind, Constant)]
    return given[position]


class _Splitter:
    """Writes the graph in which split members are cats of their slices."""

    def __init__(self, chosen: Materialization, cuts: dict[int, SplitPoints]) -> None:
        self._chosen = chosen
        self._splits = cuts
        self._nodes: list[Node] = []
        self._slices: dict[int, StoredSlice] = {}
        facts = chosen.facts
        self._next = 1 + max([*facts.types, *(i.value for i in facts.graph.inputs)], default=0)

    def result(self) -> Materialization:
        """The materialization with slices as members."""
        chosen = self._chosen
        if not self._splits:
            return chosen
        for node in chosen.facts.graph.nodes:
            cuts = self._splits.get(node.results[0]) if node.results else None
            if cuts is None:
                self._nodes.append(node)
            else:
                self._split(node, cuts)
        facts = graph_facts(replace(chosen.facts.graph, nodes=tuple(self._nodes)))
        storages = {part: chosen.storages[at.value] for part, at in self._slices.items()}
        members = [value for value in (*chosen.members, *self._slices) if value not in self._splits]
        return replace(
            chosen,
            facts=facts,
            storages={**chosen.storages, **storages},
            members=tuple(sorted(members, key=lambda v: facts.positions[v])),
            slices=self._slices,
        )

    def _split(self, node: Node, cuts: SplitPoints) -> None:
        """Adds the node with a new value, its slices, and their cat with the old value."""
        (whole,), (kind,) = node.results, node.types
        inner = self._fresh()
        self._nodes.append(replace(node, results=(inner,)))
        parts = []
        for start, limit in pairwise((ZERO, *cuts.offsets, kind.shape[cuts.dim])):
            if start is limit:
                continue
            part = self._fresh()
            parts.append(part)
            self._slices[part] = StoredSlice(whole, cuts.dim, start)
            self._nodes.append(_slice(node, kind, (inner, part), (cuts.dim, start, limit)))
        self._nodes.append(
            replace(node, op="cat", args=references(tuple(parts)), attrs=(("dim", cuts.dim),))
        )

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1


def _slice(
    node: Node, kind: TensorType, values: tuple[int, int], span: tuple[int, Expr, Expr]
) -> Node:
    """The slice of a value (values[0]) from `start` up to `limit` along an axis."""
    dim, start, limit = span
    before, after = kind.shape[:dim], kind.shape[dim + 1 :]
    attrs = (
        ("limits", (*before, limit, *after)),
        ("starts", (*(ZERO for _ in before), start, *(ZERO for _ in after))),
        ("steps", (ONE,) * len(kind.shape)),
    )
    types = (TensorType(kind.dtype, (*before, limit - start, *after)),)
    return Node(
        "slice", references(values[:1]), attrs, values[1:], types, node.origins, node.location
    )


def _notes(
    chosen: Materialization, cats: list[Node], plans: dict[int, _Plan], reasons: dict[int, str]
) -> Iterator[str]:
    """How each cat is computed, and why."""
    readers = {v: plan.splits for v, plan in plans.items() if plan.splits is not None}
    for node in cats:
        value = node.results[0]
        count = len(chosen.facts.pieces[value])
        what = f"cat of {count} pieces ({_captured(node)})"
        if value in chosen.row_cats and value in readers:
            yield f"{what}: stored row by row, by the kernel that sums products"
        elif count <= MAX_PIECES_SELECTED:
            yield f"{what}: selected where it is read: at most {MAX_PIECES_SELECTED} pieces"
        elif value in reasons:
            yield f"{what}: stored piece by piece into memory of its own: {reasons[value]}"
        elif value in readers:
            yield f"{what}: stored piece by piece: more than {MAX_PIECES_SELECTED} pieces"
        else:
            yield (
                f"{what}: its readers are stored piece by piece:"
                f" more than {MAX_PIECES_SELECTED} pieces"
            )


def _captured(node: Node) -> str:
    return ", ".join(f"node {number}" for number in node.origins) or "no captured node"
