"""How many bytes a kernel moves if blocks of its points are computed one after the other.

A block moves each sector that its points touch once: registers and the nearest cache keep it until
the block is done, unless that cache has too few sets for lines at one distance. The next block
moves its sectors again, from memory, or, if all data of the access are small enough, from a cache.
Small data that stay in the nearest cache cost nothing again.

Neighbouring threads or lanes access memory in one request, which takes a cache line for each run of
elements. If an access is strided along them, the requests take longer than memory does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd, inf, prod

from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic.access_patterns import AccessPattern, KernelAccesses

# Judgement: a multiprocessor of an H100 takes a line of 128 bytes a cycle, and its share of
# memory's bandwidth is 15 to 20 bytes. A core's first-level cache is faster still.
_LINE_SPEEDUP = 6
# Judgement: what fits a quarter of the nearest cache stays there while other data pass through it.
_NEAR_SHARE = 4

Block = Mapping[str, int]
"""The points of a block along each axis, the innermost first; axes that are left out have one."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes between memory and a kernel.

    `least_bytes` moves every sector once. `cost_bytes` is what blocks move; what a cache gives
    counts as the bytes that memory moves in the same time.
    """

    cost_bytes: int
    least_bytes: int


def flat_block(axes: Sequence[str], extents: Mapping[str, int], points: int) -> dict[str, int]:
    """A block of consecutive points, the last axis fastest."""
    block: dict[str, int] = {}
    for axis in reversed(axes):
        block[axis] = min(extents[axis], points)
        points = ceil(points / block[axis])
    return block


def moved(accesses: KernelAccesses, block: Block, memory: MemoryFacts) -> Moved:
    """What a kernel moves in blocks of a form."""
    extents = accesses.extents
    blocks = prod(extents[axis] / block.get(axis, 1) for axis in extents)
    cost, least = 0.0, 0
    for pattern in accesses.patterns:
        once = min(
            touched_bytes(pattern, extents, memory.sector_bytes),
            _whole_sectors(pattern.buffer_bytes, memory.sector_bytes),
        )
        everywhere = blocks * touched_bytes(pattern, block, memory.sector_bytes)
        again = max(0.0, everywhere - once)
        cost += once + again / _rereading_speedup(once, memory)
        cost += blocks * _evicted_bytes(pattern, block, memory) / memory.cache_speedup
        least += once
    return Moved(round(cost), least)


def _rereading_speedup(data_bytes: int, memory: MemoryFacts) -> float:
    """How many times faster than memory later blocks read all data of an access again."""
    if memory.cache_sets is not None:
        near_bytes = memory.cache_sets * memory.cache_ways * memory.line_bytes
        if data_bytes * _NEAR_SHARE <= near_bytes:
            return inf
    return memory.cache_speedup if data_bytes <= memory.cache_bytes else 1


def request_cost_bytes(accesses: KernelAccesses, axes: Sequence[str], memory: MemoryFacts) -> int:
    """The bytes that memory moves while the requests for consecutive points are served."""
    block = flat_block(axes, accesses.extents, memory.request_points)
    requests = prod(accesses.extents[axis] / block.get(axis, 1) for axis in accesses.extents)
    lines = 0
    for pattern in accesses.patterns:
        runs, run_bytes = _runs(pattern, block, memory.sector_bytes)
        lines += run_bytes if runs == 1 else runs * max(run_bytes, memory.line_bytes)
    return round(requests * lines / _LINE_SPEEDUP)


def touched_bytes(pattern: AccessPattern, block: Block, sector_bytes: int) -> int:
    """The bytes of the sectors that the points of one block touch."""
    runs, run_bytes = _runs(pattern, block, sector_bytes)
    return runs * run_bytes


def _evicted_bytes(pattern: AccessPattern, block: Block, memory: MemoryFacts) -> float:
    """What a block moves again because lines at the innermost axis's distance share a few sets.

    Those that have no room in the nearest cache are lost before the points of the next axis use
    them. Which ones is taken as random.
    """
    inner = next(iter(block), "")
    step = int(dict(pattern.steps).get(inner, 0))
    if memory.cache_sets is None or step <= memory.sector_bytes:
        return 0.0
    sets = memory.cache_sets
    if step % memory.line_bytes == 0:
        sets //= gcd(step // memory.line_bytes, sets)
    evicted = max(0.0, 1 - sets * memory.cache_ways / block[inner])
    points = prod(block.get(axis, 1) for axis, _ in pattern.steps)
    touched = touched_bytes(pattern, block, memory.sector_bytes)
    return evicted * max(0, points * memory.sector_bytes - touched)


def _runs(pattern: AccessPattern, block: Block, sector_bytes: int) -> tuple[int, int]:
    """The number of runs of a block, and the bytes of the sectors of one.

    Accesses that are at most a sector apart form a run; other runs have sectors of their own.
    """
    run, runs = float(pattern.item_bytes), 1
    steps = ((step, block.get(axis, 1)) for axis, step in pattern.steps)
    for step, points in sorted(steps):
        if step <= max(run, sector_bytes):
            run += step * (points - 1)
        else:
            runs *= points
    return runs, _whole_sectors(ceil(run), sector_bytes)


def contiguous_bytes(accesses: KernelAccesses, sector_bytes: int) -> dict[str, int]:
    """The bytes of accesses whose neighbours along an axis share a sector, for each such axis.

    Stores count double: a sector that is written in pieces may be read and written several times.
    """
    found: dict[str, int] = {}
    for pattern in accesses.patterns:
        elems = prod(accesses.extents[axis] for axis, _ in pattern.steps)
        weight = pattern.item_bytes * elems * (2 if pattern.is_store else 1)
        for axis, step in pattern.steps:
            if step < sector_bytes:
                found[axis] = found.get(axis, 0) + weight
    return found


def _whole_sectors(size_bytes: int, sector_bytes: int) -> int:
    return -(-size_bytes // sector_bytes) * sector_bytes
