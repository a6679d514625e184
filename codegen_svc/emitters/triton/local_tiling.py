"""The division of a kernel's points among vector cores that compute in a buffer of their own.

Nothing is tried: the sizes are computed from the chip's facts, so that every live block fits.

- Each core gets an equal share of the outer points: XBLOCK is their number by the number of cores.
- A core computes its share in sub-blocks of XBLOCK_SUB outer points.
- RBLOCK is the reduction axis, so that a row is read once. If a row does not fit, it is read in
  pieces.
- XBLOCK_SUB x RBLOCK x the bytes of the values that live together are at most the buffer's size.
  A loaded value counts twice if there is another sub-block or piece to fetch meanwhile; if no
  sub-block fits so, it counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.tiling import (
    Tiling,
    is_reduction,
    longest_sorted,
    sorts_rows,
    static_numel,
)
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Kernel,
    Load,
    Reduce,
    Sort,
    Statement,
    Store,
    operands_of,
    varying_values,
)
from kernelfarm.targets import LocalBufferFacts, TargetFacts

_DYNAMIC_SUBBLOCKS = 8
_MAX_POINTS = 1 << 15
# Judgement, not measured: a step of so many points hides what starting it costs, so smaller ones
# are taken where they divide the rows among cores more evenly.
_EASY_POINTS = 1 << 12
_PIECES = tuple(1 << bits for bits in range(12, 3, -1))


def local_tiling(
    kernel: Kernel, target: TargetFacts, index_bits: int, load_buffers: Sequence[int] = (2, 1)
) -> Tiling | None:
    """The tiling whose live blocks fit the local buffer; None if none does.

    `load_buffers`: how many times a loaded value may count, best first.
    """
    chip = target.section(LocalBufferFacts)
    for rblock, is_persistent in _row_blocks(kernel, target):
        for buffers in load_buffers:
            stored = rblock if is_reduction(kernel) else 0
            form = Tiling(1, 1, stored, is_persistent and bool(stored), index_bits)
            found = _shared(kernel, chip, replace(form, load_buffers=buffers))
            if found is not None:
                return found
    return None


def _row_blocks(kernel: Kernel, target: TargetFacts) -> list[tuple[int, bool]]:
    """The values that RBLOCK may have, best first, and whether a block holds a whole row."""
    if sorts_rows(kernel):
        return [(next_power_of_2(longest_sorted(kernel, target)), True)]
    if not is_reduction(kernel):
        return [(1, True)]
    width = static_numel(kernel.reduction)
    whole = [(next_power_of_2(width), True)] if width else []
    return whole + [(piece, False) for piece in _PIECES]


def _shared(kernel: Kernel, chip: LocalBufferFacts, form: Tiling) -> Tiling | None:
    """The form with the rows of one core; None if not even one row fits."""
    rows = static_numel(kernel.outer)
    share = _MAX_POINTS if rows is None else max(1, -(-rows // chip.vector_cores))
    points = max(1, form.rblock)
    widest = min(next_power_of_2(share), max(1, _MAX_POINTS // points))
    sides = [1 << bits for bits in range(widest.bit_length())]
    fitting = [
        t
        for t in (_rows_of(form, side, share, rows) for side in sides)
        if local_bytes(kernel, t, chip) <= chip.size_bytes
    ]
    if not fitting:
        return None
    largest = fitting[-1]
    easy = [t for t in fitting if t.xsub * points >= _EASY_POINTS] if rows is not None else []
    # The busiest core decides; among equals, the fewest steps.
    return min(easy or [largest], key=lambda t: (t.xblock, -t.xsub))


def _rows_of(form: Tiling, xsub: int, share: int, rows: int | None) -> Tiling:
    blocks = _DYNAMIC_SUBBLOCKS if rows is None else -(-share // xsub)
    tiling = replace(form, xblock=blocks * xsub, xsub=xsub)
    has_one_step = blocks == 1 and (form.is_persistent or not form.rblock)
    return replace(tiling, load_buffers=1) if has_one_step else tiling


def local_bytes(kernel: Kernel, tiling: Tiling, chip: LocalBufferFacts) -> int:
    """The most bytes of the local buffer that the live blocks of one sub-block need.

    A value that does not vary has one element for each row. A reduction needs more blocks during a
    step. Each block begins at a multiple of the buffer's alignment.
    """
    last_use = _last_uses(kernel)
    varying = varying_values(kernel)
    points = tiling.xsub * max(1, tiling.rblock)
    live: dict[int, int] = {}
    peak = 0
    for number, statement in enumerate(kernel.body):
        elems = points if number in varying or not is_reduction(kernel) else tiling.xsub
        size = _aligned(elems * _value_bytes(kernel, number), chip)
        live[number] = size * tiling.load_buffers if isinstance(statement, Load) else size
        extra = _aligned(points * _work_bytes(kernel, number), chip)
        peak = max(peak, sum(live.values()) + extra)
        for dead in [v for v in live if last_use.get(v, v) <= number]:
            del live[dead]
    accumulators = 0 if tiling.is_persistent else sum(map(_accumulators, kernel.body))
    return peak + accumulators * _aligned(points * 4, chip)


def _aligned(size_bytes: int, chip: LocalBufferFacts) -> int:
    return -(-size_bytes // chip.alignment_bytes) * chip.alignment_bytes


def _work_bytes(kernel: Kernel, number: int) -> int:
    """Bytes for each point that computing a statement needs, beside its operands and result."""
    statement = kernel.body[number]
    if isinstance(statement, Sort):
        # Keys, one key at a time, positions, ranks, and two masks as words.
        return 2 * _value_bytes(kernel, statement.operand) + 4 * 4
    if not isinstance(statement, Reduce):
        return 0
    # Halves of the block; a guided reduction has a distance, its scale and a summand.
    return _value_bytes(kernel, number) * (3 if statement.op in GUIDES else 1)


def _accumulators(statement: Statement) -> int:
    """Blocks that a loop carries; a guided reduction has some for its guide too."""
    if not isinstance(statement, Reduce):
        return 0
    return {"softmax_sum": 2, "welford_m2": 3}.get(statement.op, 1)


def _last_uses(kernel: Kernel) -> dict[int, int]:
    last: dict[int, int] = {}
    for number, statement in enumerate(kernel.body):
        for operand in operands_of(statement):
            last[operand] = number
    return last


def _value_bytes(kernel: Kernel, number: int) -> int:
    statement = kernel.body[number]
    if isinstance(statement, Load):
        return kernel.param(statement.param).dtype.itemsize_bytes
    if isinstance(statement, Store):
        return 0
    dtype = getattr(statement, "dtype", None)
    return dtype.itemsize_bytes if dtype is not None else 8
