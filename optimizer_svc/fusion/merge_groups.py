"""Merges two groups into one kernel, or says why they cannot be merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.extents import likely_elems
from optimizer_svc.analysis.index_maps import Index, ravel
from optimizer_svc.analysis.storages import Storage
from optimizer_svc.analysis.strided_views import order_in_memory
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.fusion.alignment import (
    Alignment,
    Axes,
    aligned,
    chain_of,
    matched_by_order,
)
from optimizer_svc.fusion.in_place import in_update_order, overwritten, touches_scattered
from optimizer_svc.fusion.scan_order import in_scan_order
from optimizer_svc.ir.group import DomainAxis, Group, domain_bounds, joined, moved

MAX_STATEMENTS = 400
"""The most statements: LLVM's time grows faster than linearly, and registers run out."""
ROWS_FOR_ELEMS = ((8, 1 << 16), (128, 1 << 21))
"""(rows, elements): fewer rows with more elements are not fused.

A fused reduction runs row by row, so too few rows leave processors idle. In the second pair the
elements exceed the caches, so that fusion does not save reading them again.
"""

Matches = list[tuple[Axes, Axes]]


@dataclass(frozen=True, slots=True)
class MergeContext:
    """The facts that a merge needs: storages, ranges of sizes, and their likely values."""

    storages: Mapping[int, Storage]
    sizes: Bounds
    likely: dict[str, int]


def merge_groups(context: MergeContext, producer: Group, consumer: Group) -> Group | Refused:
    """Both groups as one; the consumer may read the producer's values, but not the reverse."""
    spend(80 + len(producer.reads) + len(consumer.reads) + len(producer.members))
    if producer.statements + consumer.statements > MAX_STATEMENTS:
        return Refused(f"more than {MAX_STATEMENTS} statements")
    if touches_scattered(context.storages, producer, consumer):
        return Refused("a scatter is done only when its kernel is")
    verdict: Group | Refused = Refused("no common domain")
    tried: set[str] = set()
    for matches in _candidates(context, producer, consumer):
        if isinstance(matches, Refused):
            verdict = matches
            continue
        text = str([[[a.name for a in axes] for axes in pair] for pair in matches])
        if text in tried:
            continue
        tried.add(text)
        verdict = _merged(context, producer, consumer, matches)
        if isinstance(verdict, Group):
            return verdict
    return verdict


def _merged(
    context: MergeContext, producer: Group, consumer: Group, matches: Matches
) -> Group | Refused:
    refusal = _unmatched(producer, consumer, matches)
    if refusal is not None:
        return refusal
    alignment = aligned(producer.axes, consumer.axes, matches)
    if isinstance(alignment, Refused):
        return alignment
    refusal = _too_serial(context, alignment)
    if refusal is not None:
        return refusal
    spend(producer.statements + consumer.statements)
    bounds = domain_bounds(context.sizes, alignment.axes)
    left = moved(producer, alignment.left, bounds)
    right = moved(consumer, alignment.right, bounds)
    for value, index in right.reads:
        position = left.positions.get(value)
        if position is not None and position != index:
            return Refused(f"value {value} is read at other points than the one that makes it")
    refusal = overwritten(context.storages, left, right)
    if refusal is not None:
        return refusal
    members = (*left.members, *right.members)
    axes = in_scan_order(members, alignment.axes, bounds)
    if not isinstance(axes, Refused):
        axes = in_update_order(members, axes, bounds)
    return axes if isinstance(axes, Refused) else joined(left, right, axes)


def _unmatched(producer: Group, consumer: Group, matches: Matches) -> Refused | None:
    """Refuses unmatched axes, except a whole reduction if the other side has none."""
    mine = {axis.name for pair in matches for axis in pair[0]}
    theirs = {axis.name for pair in matches for axis in pair[1]}
    left = [axis for axis in producer.axes if axis.name not in mine]
    right = [axis for axis in consumer.axes if axis.name not in theirs]
    if left and right:
        return Refused("both have axes of their own")
    if left and (consumer.reduction or len(left) != len(producer.reduction)):
        return Refused("the reader does not cover the producer's domain")
    if right and (producer.reduction or len(right) != len(consumer.reduction)):
        return Refused("the reader has more points than the producer: a broadcast through memory")
    if any(not axis.is_reduction for axis in (*left, *right)):
        return Refused("an axis that is not reduced exists on one side only")
    return None


def _too_serial(context: MergeContext, alignment: Alignment) -> Refused | None:
    """Refuses rows that are too few and too long."""
    rows = likely_elems((a.extent for a in alignment.axes if not a.is_reduction), context.likely)
    row = likely_elems((a.extent for a in alignment.axes if a.is_reduction), context.likely)
    if any(rows < least and rows * row > most for least, most in ROWS_FOR_ELEMS):
        return Refused(f"{rows} rows of {row} elements are too few to work in parallel")
    return None


def _candidates(
    context: MergeContext, producer: Group, consumer: Group
) -> Iterator[Matches | Refused]:
    """Ways to match the two domains, the most reliable first."""
    partial: list[Matches] = []
    has_edge = False
    for value, index in consumer.reads:
        position = producer.positions.get(value)
        if position is None:
            continue
        has_edge = True
        found = _through(context, value, (producer, position), (consumer, index))
        if found is None:
            yield Refused(f"value {value} is read in no order that its producer could follow")
        elif len(found) == 1:
            yield found
        else:
            partial.append(found)
    yield from _through_shared_reads(context, producer, consumer)
    yield from partial
    if not has_edge:
        yield matched_by_order(producer.axes, consumer.axes)


def _through_shared_reads(
    context: MergeContext, producer: Group, consumer: Group
) -> Iterator[Matches]:
    """Matches through tensors that both read over their whole domain."""
    mine: dict[int, Index] = {}
    for value, index in producer.reads:
        mine.setdefault(value, index)
    for value, index in consumer.reads:
        if value in mine:
            found = _through(context, value, (producer, mine[value]), (consumer, index))
            if found is not None and len(found) == 1 and _covers(found[0], producer, consumer):
                yield found


def _covers(pair: tuple[Axes, Axes], producer: Group, consumer: Group) -> bool:
    return len(pair[0]) == len(producer.axes) and len(pair[1]) == len(consumer.axes)


def _through(
    context: MergeContext, value: int, left: tuple[Group, Index], right: tuple[Group, Index]
) -> Matches | None:
    """Axes matched through the position that both sides address in one tensor.

    That is the row-major position, or, with the axes in their order in memory, the one from which a
    reader of slices divides. Other axes (of a reduction that made the tensor, or along which a
    reader broadcasts it) are matched in order.
    """
    storage = context.storages[value]
    row_major = tuple(range(len(storage.shape)))
    for order in dict.fromkeys((row_major, order_in_memory(storage.strides))):
        found = _through_positions(context, _permuted(storage.shape, order), order, left, right)
        if found is not None:
            return found
    return None


def _permuted(index: Index, order: tuple[int, ...]) -> Index:
    return tuple(index[axis] for axis in order)


def _through_positions(
    context: MergeContext,
    shape: Index,
    order: tuple[int, ...],
    left: tuple[Group, Index],
    right: tuple[Group, Index],
) -> Matches | None:
    """The same for positions in a shape whose axes are those of the tensor in an order."""
    chains: list[Axes] = []
    rests: list[Axes] = []
    for group, index in (left, right):
        bounds = domain_bounds(context.sizes, group.axes)
        position = ravel(_permuted(index, order), shape)
        chain = chain_of(simplify(position, bounds), group.axes)
        if chain is None:
            return None
        names = {axis.name for axis in chain}
        chains.append(chain)
        rests.append(_rest(group.axes, names))
    if rests[0] and rests[1]:
        return [(chains[0], chains[1]), (rests[0], rests[1])]
    return [(chains[0], chains[1])]


def _rest(axes: tuple[DomainAxis, ...], names: set[str]) -> Axes:
    return [axis for axis in reversed(axes) if axis.name not in names]
