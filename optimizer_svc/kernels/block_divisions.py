"""How kernels that share large memory are divided into blocks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.score_blocks import MOST_BLOCKS
from optimizer_svc.kernels.block_windows import Step, block_sizes, window_starts, windows_of

CAUSAL_BLOCKS = 16
"""Blocks of a head's queries that see no later keys, if each has at least `LEAST_CAUSAL_ROWS`."""
LEAST_CAUSAL_ROWS = 128


@dataclass(frozen=True, slots=True)
class BlockFamily:
    """Launches that share memory, by their positions, with their parameters of that memory.

    `item_bytes` are those of one element of all memories. `causal` are the numbers of queries and
    keys if later keys are hidden.
    """

    memories: frozenset[int]
    params: Mapping[int, tuple[str, ...]]
    elems: int
    item_bytes: int
    causal: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class BlockDivision:
    """Blocks of so many elements, and for each launch the windows of its axes in every block.

    `windows` are their points, `starts` their first points. If blocks of causal attention see no
    later keys, `endings` are the axes of keys, and `ends` the keys that each block sees.
    """

    elems: int
    count: int
    windows: Mapping[int, dict[str, int]]
    starts: Mapping[int, list[dict[str, int]]]
    endings: Mapping[int, str] = field(default_factory=dict)
    ends: tuple[int, ...] = ()


def block_division(
    family: BlockFamily, steps: Mapping[int, tuple[Step, ...]], block_bytes: int
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
        found = _ending(BlockDivision(elems, count, windows, made), family, steps)
        if elems * family.item_bytes <= _most_bytes(family, block_bytes):
            return found
    return found


def _most_bytes(family: BlockFamily, block_bytes: int) -> int:
    """The bytes of a block; if later keys are hidden, several blocks for each long head."""
    if family.causal is None:
        return block_bytes
    queries, keys = family.causal
    head_bytes = queries * keys * family.item_bytes
    least = max(head_bytes // CAUSAL_BLOCKS, LEAST_CAUSAL_ROWS * keys * family.item_bytes)
    return min(block_bytes, least)


def _ending(
    division: BlockDivision, family: BlockFamily, steps: Mapping[int, tuple[Step, ...]]
) -> BlockDivision:
    """The division with the keys that blocks of causal attention see, if kernels may end there."""
    if family.causal is None:
        return division
    queries, keys = family.causal
    rows = division.elems // keys
    endings = {
        position: step.name
        for position, own in steps.items()
        for step in own
        if (step.elems, step.extent) == (1, keys)
    }
    if rows == 0 or queries % rows or division.elems % keys or len(endings) < len(steps):
        return division
    ends = (min(keys, number * rows % queries + rows) for number in range(division.count))
    return replace(division, endings=endings, ends=tuple(ends))
