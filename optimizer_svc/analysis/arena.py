"""Packs temporaries into one arena, so that those alive at the same time do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, ceil_div
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


def plan_arena(lifetimes: Sequence[Lifetime]) -> Arena:
    """An arena for temporaries.

    Known sizes get best-fit offsets. Behind them, temporaries of equal symbolic size share slots.
    """
    ordered = sorted(lifetimes, key=lambda life: life.first)
    known = [life for life in ordered if life.size_bytes.is_constant]
    offsets, known_bytes = _best_fit(known)
    total = as_expr(known_bytes)
    slots: dict[Expr, list[tuple[Expr, int]]] = {}
    for life in ordered:
        if life.size_bytes.is_constant:
            continue
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


def _best_fit(lifetimes: Sequence[Lifetime]) -> tuple[dict[int, Expr], int]:
    """Puts each temporary into the smallest gap that holds it, in order of first use."""
    offsets: dict[int, Expr] = {}
    alive: list[tuple[int, int, int]] = []  # (begin, end, last step), by begin
    top = 0
    for life in lifetimes:
        spend(1 + len(alive))
        alive = [block for block in alive if block[2] >= life.first]
        size = _aligned(life.size_bytes).as_int()
        begin = _best_gap(alive, size) if size else 0
        offsets[life.value] = as_expr(begin) if size else ZERO
        if size:
            alive.append((begin, begin + size, life.last))
            alive.sort()
            top = max(top, begin + size)
    return offsets, top


def _best_gap(alive: Sequence[tuple[int, int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for begin, block_end, _ in alive:
        gap = begin - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, block_end)
    return end if best is None else best[1]
