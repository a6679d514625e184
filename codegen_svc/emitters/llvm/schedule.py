"""The schedule of a loop kernel on a CPU: the vectorized axis, and the loops of each value.

A kernel runs in units. A unit is a point of the outer axes or, if the innermost outer axis is
vectorized, a block of that axis, whose elements are *lanes*. Within a unit, phase p loops over the
reduction axes; it computes the reductions, and fills the rows to sort, that depend on p-1 earlier
ones. A varying store belongs to the first phase that can compute it. A value that several phases
need is computed again, or kept in a scratch row if it is expensive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from codegen_svc.emitters.llvm.lane_axis import (
    SCRATCH_BYTES,
    TILE_LANES,
    lane_axis,
    lane_block_of,
    tile_rows,
    turned_accesses,
)
from codegen_svc.emitters.llvm.lane_constants import lane_constants
from codegen_svc.emitters.llvm.math_functions.narrow import FUNCTIONS
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, ceil_div, product_of
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Access,
    Axis,
    Compute,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Sort,
    Store,
    index_of,
    operands_of,
    varying_values,
)
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic import (
    BlockForm,
    choose_block,
)

# Terms of a sequential f32 sum that is exact enough; longer sums are split into blocks.
SUM_BLOCK: Final = 4096
# Points that two successive loops run over: f32 values stay in the L1 cache between them. As many
# as in a block of a sum: twice as many lost twice as much of a softmax's small terms.
GUIDED_BLOCK: Final = SUM_BLOCK
# Sums of lanes are sequential; longer ones than this are kept in f64.
WIDE_SUM_EXTENT: Final = 1024
# Terms that such a sum first adds in f32: additions in f64 take twice as long.
SUM_OF_LANES_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One running reduction.

    `guide` names the accumulator that it is relative to: for a `first_index` the extremum of the
    whole row, for a guided reduction the guide, which is computed in the same loop.
    """

    key: str
    statement: int
    op: str
    operand: int
    dtype: DType
    guide: str = ""

    @property
    def is_guided(self) -> bool:
        """True if it sums values relative to a guide that still changes."""
        return self.op in GUIDES


@dataclass(frozen=True, slots=True)
class Phase:
    """One loop over the reduction axes: its accumulators, its stores, and the rows to sort that it
    fills. The rows are sorted after the loop.
    """

    accumulators: tuple[Accumulator, ...]
    stores: tuple[int, ...]
    sorts: tuple[int, ...] = ()

    @property
    def has_float_sum(self) -> bool:
        """True if rounding makes the order of accumulation matter."""
        rounded = ("sum", "prod", *GUIDES)
        return any(a.op in rounded and a.dtype.is_float for a in self.accumulators)

    @property
    def plain(self) -> tuple[Accumulator, ...]:
        """The accumulators that need no guide of this phase."""
        return tuple(a for a in self.accumulators if not a.is_guided)

    @property
    def guided(self) -> tuple[Accumulator, ...]:
        """The accumulators that are relative to others of this phase."""
        return tuple(a for a in self.accumulators if a.is_guided)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule; `lane` is the vectorized outer axis, None if the reduction is vectorized.

    If `is_tiled`, the loop over blocks of lanes is outside of the loop over the last row axis. If
    there are `turned` accesses (loads and stores, by number), a unit has `tile_rows` points of that
    axis, too.
    """

    rows: tuple[Axis, ...]
    lane: Axis | None
    lane_block: int
    is_tiled: bool
    tile_rows: int
    turned: tuple[int, ...]
    reduction: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    final_stores: tuple[int, ...]
    scratch: tuple[int, ...]
    lane_constants: tuple[int, ...]
    varying: frozenset[int]
    indirect_of: dict[str, int]

    @property
    def units(self) -> tuple[Axis, ...]:
        """The axes of the units, the fastest last."""
        if self.lane is None:
            return self.rows
        blocks = Axis(f"{self.lane.name}_block", ceil_div(self.lane.extent, self.lane_block))
        if self.tile_rows:
            row = self.rows[-1]
            tiles = Axis(f"{row.name}_block", ceil_div(row.extent, self.tile_rows))
            return (*self.rows[:-1], tiles, blocks)
        if self.is_tiled:
            return (*self.rows[:-1], blocks, self.rows[-1])
        return (*self.rows, blocks)

    @property
    def unit_count(self) -> Expr:
        """Number of units."""
        return product_of([axis.extent for axis in self.units])


def schedule(kernel: Kernel, memory: MemoryFacts) -> Schedule:
    """The schedule of a kernel on a processor with this memory."""
    indirect_of = {s.symbol: n for n, s in enumerate(kernel.body) if isinstance(s, Indirect)}
    varying = varying_values(kernel)
    depths = _depths(kernel, indirect_of)
    phases, final_stores = _phases(kernel, varying, depths)
    lane = lane_axis(kernel, memory)
    rows = tuple(axis for axis in kernel.outer if axis is not lane)
    turned = turned_accesses(kernel, rows, lane)
    is_tiled = bool(turned) or choose_block(kernel, memory).form is BlockForm.TILE
    scratch = () if lane else _scratch(kernel, phases, final_stores, varying, indirect_of)
    return Schedule(
        rows=rows,
        lane=lane,
        lane_block=TILE_LANES if is_tiled else lane_block_of(lane, has_reduction=bool(phases)),
        is_tiled=is_tiled,
        tile_rows=tile_rows(kernel, turned, memory),
        turned=turned,
        reduction=kernel.reduction,
        phases=phases,
        final_stores=final_stores,
        scratch=scratch,
        lane_constants=lane_constants(kernel, lane),
        varying=varying,
        indirect_of=indirect_of,
    )


def used_by(kernel: Kernel, number: int, indirect_of: dict[str, int]) -> tuple[int, ...]:
    """The statements that a statement uses, also through indirect symbols."""
    statement = kernel.body[number]
    index = index_of(statement)
    symbols = () if index is None else sorted(index.symbols)
    return (*operands_of(statement), *(indirect_of[s] for s in symbols if s in indirect_of))


def closure(
    kernel: Kernel, roots: Iterable[int], indirect_of: dict[str, int], stop: frozenset[int]
) -> set[int]:
    """The statements needed to compute the roots.

    Reductions, sorts and `stop` are included, but not the statements that only they need.
    """
    found: set[int] = set()
    pending = list(roots)
    while pending:
        number = pending.pop()
        if number in found:
            continue
        found.add(number)
        if number not in stop and not isinstance(kernel.body[number], Reduce | Sort):
            pending += used_by(kernel, number, indirect_of)
    return found


def phase_roots(kernel: Kernel, phase: Phase) -> list[int]:
    """The statements that a phase needs for its accumulators, rows to sort, and stores."""
    rows = (operands_of(kernel.body[number])[0] for number in phase.sorts)
    return [*(a.operand for a in phase.accumulators), *rows, *phase.stores]


def _depths(kernel: Kernel, indirect_of: dict[str, int]) -> list[int]:
    """For each statement the number of phases that must end before its value is known."""
    depths: list[int] = []
    for number, statement in enumerate(kernel.body):
        depth = max((depths[v] for v in used_by(kernel, number, indirect_of)), default=0)
        if isinstance(statement, Reduce):
            depth += 2 if statement.op in ("argmax", "argmin") else 1
        depth += int(isinstance(statement, Sort))
        depths.append(depth)
    return depths


def _phases(
    kernel: Kernel, varying: frozenset[int], depths: list[int]
) -> tuple[tuple[Phase, ...], tuple[int, ...]]:
    accumulators: dict[int, list[Accumulator]] = {}
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Reduce):
            for offset, accumulator in enumerate(_accumulators(kernel, number, statement)):
                first = depths[number] - 1 if statement.op.startswith("arg") else depths[number]
                phase = first if statement.op in GUIDES else first + offset
                accumulators.setdefault(phase, []).append(accumulator)
    stores = {n: s for n, s in enumerate(kernel.body) if isinstance(s, Store)}
    sorts: dict[int, list[int]] = {}
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Sort):
            sorts.setdefault(depths[number], []).append(number)
    inside = {n: depths[n] + 1 for n in stores if n in varying}
    last = max([*accumulators, *sorts, *inside.values()], default=0)
    for number in inside:
        # Each phase before the last may read an element of an in-place buffer again.
        if kernel.param(stores[number].param).access is Access.READ_WRITE:
            inside[number] = last
    phases = tuple(
        Phase(
            tuple(accumulators.get(p, ())),
            tuple(n for n in inside if inside[n] == p),
            tuple(sorts.get(p, ())),
        )
        for p in range(1, last + 1)
    )
    return phases, tuple(n for n in stores if n not in varying)


def _accumulators(kernel: Kernel, number: int, reduce: Reduce) -> list[Accumulator]:
    """The accumulators of a reduction.

    An arg-reduction has two: the extremum, then the first index at which it occurs. A guided
    reduction has two if its guide is no statement of the kernel.
    """
    key = f"{reduce.op}{number}"
    if reduce.op in GUIDES:
        return _guided(kernel, Accumulator(key, number, reduce.op, reduce.operand, reduce.dtype))
    if reduce.op not in ("argmax", "argmin"):
        return [Accumulator(key, number, reduce.op, reduce.operand, reduce.dtype)]
    dtype = value_dtype(kernel, reduce.operand).compute_dtype
    best = f"best{number}"
    extremum = "amax" if reduce.op == "argmax" else "amin"
    return [
        Accumulator(best, -1, extremum, reduce.operand, dtype),
        Accumulator(key, number, "first_index", reduce.operand, reduce.dtype, best),
    ]


def _guided(kernel: Kernel, a: Accumulator) -> list[Accumulator]:
    guide_reduction = Reduce(GUIDES[a.op], a.operand, a.dtype)
    if guide_reduction in kernel.body:
        return [replace(a, guide=f"{guide_reduction.op}{kernel.body.index(guide_reduction)}")]
    guide = f"guide{a.statement}"
    return [
        Accumulator(guide, -1, guide_reduction.op, a.operand, a.dtype),
        replace(a, guide=guide),
    ]


def value_dtype(kernel: Kernel, number: int) -> DType:
    """The element type of a statement's value."""
    statement = kernel.body[number]
    if isinstance(statement, Load):
        return kernel.param(statement.param).dtype
    if isinstance(statement, Indirect | Store):
        raise ValueError(f"statement {number} has no value")
    return statement.dtype


def _scratch(
    kernel: Kernel,
    phases: tuple[Phase, ...],
    final_stores: tuple[int, ...],
    varying: frozenset[int],
    indirect_of: dict[str, int],
) -> tuple[int, ...]:
    """The expensive varying values that several phases need and whose rows fit the stack."""
    extent = product_of([axis.extent for axis in kernel.reduction])
    if not extent.is_constant or len(phases) < 2:
        return ()
    chosen: list[int] = []
    free_bytes = SCRATCH_BYTES
    for number in reversed(range(len(kernel.body))):
        statement = kernel.body[number]
        if number not in varying or not _is_expensive(statement):
            continue
        stop = frozenset(chosen)
        users = [
            p
            for p in phases
            if number in closure(kernel, phase_roots(kernel, p), indirect_of, stop)
        ]
        size = extent.constant * max(value_dtype(kernel, number).itemsize_bytes, 1)
        if len(users) > 1 and size <= free_bytes:
            chosen.append(number)
            free_bytes -= size
    return tuple(sorted(chosen))


def _is_expensive(statement: object) -> bool:
    return isinstance(statement, Compute) and statement.op in FUNCTIONS
