"""Packs temporaries into one arena, so that those alive at the same time do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, ceil_div
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES
from kernelfarm.ir.work_budget import spend


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary that is alive from step `first` to step `last`, both included."""

    value: int
    size_bytes: Expr
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """The offset of each temporary in bytes, and the arena's size."""

    offsets: dict[int, Expr]
    size_bytes: Expr


MAX_TRIED = 512
"""With more temporaries, one order of placing them is tried: others take quadratic time."""
_MIN_UNITS = 16 * ARENA_ALIGNMENT_BYTES
"""Counts of units are rounded up to the alignment, which wastes little of a count of this size."""


def plan_arena(lifetimes: Sequence[Lifetime]) -> Arena:
    """An arena for temporaries.

    Sizes that are multiples of one unit (a byte, or `s0` bytes for any `s0`) are packed in a region
    of their own, by the number of units. Behind these regions, other temporaries of equal symbolic
    size share slots. No decision depends on the value of a symbol.
    """
    ordered = sorted(lifetimes, key=lambda life: life.first)
    regions: dict[Expr, list[_Block]] = {ONE: []}
    others: list[Lifetime] = []
    for life in ordered:
        unit, count = _units(life.size_bytes)
        is_packed = unit is ONE or count >= _MIN_UNITS or count % ARENA_ALIGNMENT_BYTES == 0
        if is_packed:
            regions.setdefault(unit, []).append(
                _Block(life.value, _rounded(count), life.first, life.last)
            )
        else:
            others.append(life)
    offsets: dict[int, Expr] = {}
    total = ZERO
    for unit, blocks in regions.items():
        begins, top = _packed(blocks)
        for value, begin in begins.items():
            offsets[value] = total + unit * begin
        total = total + unit * top
    return _with_slots(others, offsets, total)


@dataclass(frozen=True, slots=True)
class _Block:
    """A temporary whose size is a number of units."""

    value: int
    size: int
    first: int
    last: int


def _units(size: Expr) -> tuple[Expr, int]:
    """A size as an expression without a common factor, and the number of these."""
    if size.is_constant:
        return ONE, size.constant
    count = gcd(size.constant, *(coefficient for _, coefficient in size.terms))
    return (size // count, count) if count > 1 else (size, 1)


def _with_slots(lifetimes: Sequence[Lifetime], offsets: dict[int, Expr], total: Expr) -> Arena:
    """The arena with slots behind `total`, each for temporaries of one symbolic size."""
    slots: dict[Expr, list[tuple[Expr, int]]] = {}
    for life in lifetimes:
        free = slots.setdefault(life.size_bytes, [])
        spend(1 + len(free))
        slot = next((n for n, (_, until) in enumerate(free) if until < life.first), None)
        if slot is None:
            free.append((total, life.last))
            offsets[life.value] = total
            total = total + _aligned(life.size_bytes)
        else:
            offsets[life.value] = free[slot][0]
            free[slot] = (free[slot][0], life.last)
    return Arena(offsets, total)


def _aligned(size_bytes: Expr) -> Expr:
    return ceil_div(size_bytes, ARENA_ALIGNMENT_BYTES) * ARENA_ALIGNMENT_BYTES


def _rounded(count: int) -> int:
    return -(-count // ARENA_ALIGNMENT_BYTES) * ARENA_ALIGNMENT_BYTES


def _packed(blocks: Sequence[_Block]) -> tuple[dict[int, int], int]:
    """Where each block begins, and the height; the best of several orders of placing them."""
    best = _placed_by_time(blocks)
    bound = _most_alive(blocks)
    if len(blocks) > MAX_TRIED:
        return best
    for order in (_by_size, _by_area):
        if best[1] <= bound:
            break
        found = _placed(sorted(blocks, key=order))
        best = found if found[1] < best[1] else best
    return best


def _by_size(block: _Block) -> tuple[int, ...]:
    return -block.size, block.first, block.value


def _by_area(block: _Block) -> tuple[int, ...]:
    return -block.size * (block.last - block.first + 1), block.first, block.value


def _most_alive(blocks: Sequence[_Block]) -> int:
    """The size of all blocks at the step at which they take most: no packing is lower."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def _placed_by_time(blocks: Sequence[_Block]) -> tuple[dict[int, int], int]:
    """Puts each block into the smallest gap that holds it, in order of first use."""
    begins: dict[int, int] = {}
    alive: list[tuple[int, int, int]] = []  # (begin, end, last step), by begin
    top = 0
    for block in blocks:
        spend(1 + len(alive))
        alive = [other for other in alive if other[2] >= block.first]
        begin = begins[block.value] = _best_gap(alive, block.size) if block.size else 0
        if block.size:
            alive.append((begin, begin + block.size, block.last))
            alive.sort()
            top = max(top, begin + block.size)
    return begins, top


def _placed(blocks: Sequence[_Block]) -> tuple[dict[int, int], int]:
    """Puts each block into the smallest gap between those of its lifetime that are placed."""
    begins: dict[int, int] = {}
    placed: list[tuple[int, int, _Block]] = []  # (begin, end, block), by begin
    top = 0
    for block in blocks:
        spend(1 + len(placed) // 8)
        beside = [
            (begin, end, other.last)
            for begin, end, other in placed
            if other.first <= block.last and block.first <= other.last
        ]
        begin = begins[block.value] = _best_gap(beside, block.size) if block.size else 0
        if block.size:
            insort(placed, (begin, begin + block.size, block), key=lambda item: item[:2])
            top = max(top, begin + block.size)
    return begins, top


def _best_gap(beside: Sequence[tuple[int, int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for begin, block_end, _ in beside:
        gap = begin - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, block_end)
    return end if best is None else best[1]
