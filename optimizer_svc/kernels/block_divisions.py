"""How kernels that share large memory are divided into blocks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.score_blocks import MOST_BLOCKS
from optimizer_svc.kernels.block_windows import MemoryStep, block_sizes, window_starts, windows_of

CAUSAL_BLOCKS = 8
"""Blocks of a head, of which each counts less columns than all, if it has `LEAST_CAUSAL_ROWS`.

More blocks skip little more, but need more launches."""
LEAST_CAUSAL_ROWS = 128


@dataclass(frozen=True, slots=True)
class CausalScores:
    """Scores of which a row of `columns` counts up to its own number, or, `turned`, from it on."""

    rows: int
    columns: int
    turned: bool

    def counted(self, first: int, rows: int) -> tuple[int, int]:
        """The first column and the number of columns that count in any of some rows."""
        if self.turned:
            start = min(first, self.columns - 1)
            return start, self.columns - start
        return 0, min(self.columns, first + rows)


@dataclass(frozen=True, slots=True)
class BlockFamily:
    """Launches that share memory, by their positions, with their parameters of that memory.

    `item_bytes` are those of one element of all memories. `causal` says what is hidden if later
    keys are.
    """

    memories: frozenset[int]
    params: Mapping[int, tuple[str, ...]]
    elems: int
    item_bytes: int
    causal: CausalScores | None = None


@dataclass(frozen=True, slots=True)
class BlockDivision:
    """Blocks of so many elements, and for each launch the windows of its axes in every block.

    `windows` are their points, `starts` their first points. In blocks of causal attention,
    `trimmed` are the axes of columns, and `counted` the columns of each block: the first one, and
    how many.
    """

    elems: int
    count: int
    windows: Mapping[int, dict[str, int]]
    starts: Mapping[int, list[dict[str, int]]]
    trimmed: Mapping[int, str] = field(default_factory=dict)
    counted: tuple[tuple[int, int], ...] = ()


def block_division(
    family: BlockFamily, steps: Mapping[int, tuple[MemoryStep, ...]], block_bytes: int
) -> BlockDivision | None:
    """The largest blocks of so many bytes, else the smallest ones; None if kernels compute none.

    `steps` are the axes of each launch by their steps in the memory.
    """
    found = None
    for elems in block_sizes(steps[min(steps)]):
        count = family.elems // elems
        if count > MOST_BLOCKS:
            break
        if count == 1 or family.elems % elems:
            continue
        spend(4 * count * len(steps))
        starts = {p: window_starts(own, elems, count) for p, own in steps.items()}
        made = {position: own for position, own in starts.items() if own is not None}
        if len(made) < len(starts):
            continue
        windows = {position: windows_of(own, elems) for position, own in steps.items()}
        found = _trimmed(BlockDivision(elems, count, windows, made), family, steps)
        if elems * family.item_bytes <= _most_bytes(family, block_bytes):
            return found
    return found


def _most_bytes(family: BlockFamily, block_bytes: int) -> int:
    """The bytes of a block; if later keys are hidden, several blocks for each long head."""
    if family.causal is None:
        return block_bytes
    row_bytes = family.causal.columns * family.item_bytes
    rows = max(family.causal.rows // CAUSAL_BLOCKS, LEAST_CAUSAL_ROWS)
    return min(block_bytes, rows * row_bytes)


def _trimmed(
    division: BlockDivision, family: BlockFamily, steps: Mapping[int, tuple[MemoryStep, ...]]
) -> BlockDivision:
    """The division in which blocks of causal attention have the columns that count, if all can."""
    causal = family.causal
    if causal is None:
        return division
    rows = division.elems // causal.columns
    trimmed = {
        position: step.name
        for position, own in steps.items()
        for step in own
        if (step.elems, step.extent) == (1, causal.columns)
    }
    if rows == 0 or causal.rows % rows or division.elems % causal.columns:
        return division
    if len(trimmed) < len(steps):
        return division
    firsts = (number * rows % causal.rows for number in range(division.count))
    counted = tuple(causal.counted(first, rows) for first in firsts)
    return replace(division, trimmed=trimmed, counted=counted)
