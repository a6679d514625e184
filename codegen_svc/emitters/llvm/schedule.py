"""How a loop kernel runs on a CPU: which axis is vectorized, and in which loops what is computed.

A kernel runs in units: a point of the outer axes or, where the innermost outer axis is vectorized,
a block of it (its elements are *lanes*). Within a unit, phase p loops over the reduction axes and
computes the reductions and fills the rows to sort that depend on p-1 of such before them; varying
stores join the first phase in which they can be computed. Values that several phases need are
computed again, or kept in a scratch row if they are expensive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from codegen_svc.emitters.llvm.math_functions.erf import MATH_FUNCTIONS
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div, product_of
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Access,
    Axis,
    Compute,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    StoreMode,
    index_of,
    operands_of,
    scattering_stores,
    varying_values,
)

# A block of lanes: several thousand elements hide the unit's set-up; with a reduction, accumulators
# of a block must stay in the L1 cache.
POINTWISE_LANES: Final = 4096
REDUCTION_LANES: Final = 256
# Below this many lanes the reduction axis is the better one to vectorize.
MIN_LANES: Final = 16
# Lanes of a tile when another axis is contiguous somewhere: lines read across stay in the L1 cache
# until the next point of that axis uses them.
TILE_LANES: Final = 64
# Bytes of stack that one unit may use for kept rows: half of the smallest L1 data cache.
SCRATCH_BYTES: Final = 16 * 1024
# Exact enough for float32 sums one after the other; longer ones are cut into blocks of it.
SUM_BLOCK: Final = 4096
# Points that two loops run over, one after the other: f32 stay in the L1 cache in between. As many
# as in a block of a sum: twice as many lost twice as much of a softmax's small terms.
GUIDED_BLOCK: Final = SUM_BLOCK
# Sums of lanes are sequential: from here on they are kept in f64.
WIDE_SUM_EXTENT: Final = 1024


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One running reduction.

    `guide` names the accumulator that it is measured against: the extremum of the whole row for a
    `first_index`, the one that runs beside it for a guided reduction.
    """

    key: str
    statement: int
    op: str
    operand: int
    dtype: DType
    guide: str = ""

    @property
    def is_guided(self) -> bool:
        """True if it sums over points measured against a guide that still changes."""
        return self.op in GUIDES


@dataclass(frozen=True, slots=True)
class Phase:
    """One pass over the reduction axes: what it accumulates, stores, and puts into rows to sort.

    The sorting itself follows the pass.
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
        """The accumulators that no guide of this phase is needed for."""
        return tuple(a for a in self.accumulators if not a.is_guided)

    @property
    def guided(self) -> tuple[Accumulator, ...]:
        """The accumulators that are measured against others of this phase."""
        return tuple(a for a in self.accumulators if a.is_guided)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The chosen form; `lane` is the vectorized outer axis, None if the reduction is vectorized.

    With `is_tiled` the blocks of lanes are walked outside of the last row axis.
    """

    rows: tuple[Axis, ...]
    lane: Axis | None
    lane_block: int
    is_tiled: bool
    reduction: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    final_stores: tuple[int, ...]
    scratch: tuple[int, ...]
    varying: frozenset[int]
    indirect_of: dict[str, int]

    @property
    def units(self) -> tuple[Axis, ...]:
        """The axes over which units are counted, the fastest last."""
        if self.lane is None:
            return self.rows
        blocks = Axis(f"{self.lane.name}_block", ceil_div(self.lane.extent, self.lane_block))
        if self.is_tiled:
            return (*self.rows[:-1], blocks, self.rows[-1])
        return (*self.rows, blocks)

    @property
    def unit_count(self) -> Expr:
        """Number of units."""
        return product_of([axis.extent for axis in self.units])


def schedule(kernel: Kernel) -> Schedule:
    """The form in which a kernel runs."""
    indirect_of = {s.symbol: n for n, s in enumerate(kernel.body) if isinstance(s, Indirect)}
    varying = varying_values(kernel)
    depths = _depths(kernel, indirect_of)
    phases, final_stores = _phases(kernel, varying, depths)
    is_running = any(isinstance(s, Scan | Sort) for s in kernel.body)
    keeps_order = _keeps_order(kernel)
    reduction = kernel.reduction
    if not is_running and not keeps_order:
        reduction = _ordered(kernel, reduction)
    lane = _last_axis(kernel) if keeps_order else _lane_axis(kernel, reduction)
    across = _axis_across(kernel, lane) if lane and not phases and not keeps_order else None
    rows = tuple(axis for axis in kernel.outer if axis is not lane and axis is not across)
    if across:
        rows = (*rows, across)
    scratch = () if lane else _scratch(kernel, phases, final_stores, varying, indirect_of)
    return Schedule(
        rows=rows,
        lane=lane,
        lane_block=TILE_LANES if across else _lane_block(lane, has_reduction=bool(phases)),
        is_tiled=across is not None,
        reduction=reduction,
        phases=phases,
        final_stores=final_stores,
        scratch=scratch,
        varying=varying,
        indirect_of=indirect_of,
    )


def used_by(kernel: Kernel, number: int, indirect_of: dict[str, int]) -> tuple[int, ...]:
    """Statements that a statement depends on directly, indirect symbols included."""
    statement = kernel.body[number]
    index = index_of(statement)
    symbols = () if index is None else sorted(index.symbols)
    return (*operands_of(statement), *(indirect_of[s] for s in symbols if s in indirect_of))


def closure(
    kernel: Kernel, roots: Iterable[int], indirect_of: dict[str, int], stop: frozenset[int]
) -> set[int]:
    """Statements needed to compute the roots; reductions, sorts and `stop` are met, not entered."""
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
    """The values that a phase computes for its accumulators, rows to sort, and stores."""
    rows = (operands_of(kernel.body[number])[0] for number in phase.sorts)
    return [*(a.operand for a in phase.accumulators), *rows, *phase.stores]


def _depths(kernel: Kernel, indirect_of: dict[str, int]) -> list[int]:
    """For each statement the number of phases that must be over before it is known."""
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
        # An element of an in-place buffer may be read again by every phase before the last.
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
    """An arg-reduction is two: the extremum, then the first index at which it stands.

    So is a guided one whose guide is no statement of the kernel.
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


def _unit_stride_score(kernel: Kernel, axis: Axis) -> int:
    """How many accesses advance by one element along an axis; stores count double."""
    score = 0
    for statement in kernel.body:
        if isinstance(statement, Load | Store) and axis.name in statement.index.symbols:
            is_unit = statement.index.coefficient_of(axis.name) == as_expr(1)
            score += (2 if isinstance(statement, Store) else 1) * (1 if is_unit else -1)
    return score


def _ordered(kernel: Kernel, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes with the one that suits vectors best last; the later one on ties."""
    if len(axes) < 2:
        return axes
    scores = [_unit_stride_score(kernel, axis) for axis in axes]
    best = max(range(len(axes)), key=lambda k: (scores[k], k))
    return (*axes[:best], *axes[best + 1 :], axes[best])


def _lane_axis(kernel: Kernel, reduction: tuple[Axis, ...]) -> Axis | None:
    if not kernel.outer or any(isinstance(s, Sort) for s in kernel.body):
        return None
    candidate = _ordered(kernel, kernel.outer)[-1]
    if not reduction:
        return candidate
    extent = candidate.extent
    if extent.is_constant and extent.constant < MIN_LANES:
        return None
    is_better = _unit_stride_score(kernel, candidate) > _unit_stride_score(kernel, reduction[-1])
    varying_loads = [
        s for n, s in enumerate(kernel.body) if isinstance(s, Load) and n in varying_values(kernel)
    ]
    is_contiguous = any(s.index.coefficient_of(candidate.name) == as_expr(1) for s in varying_loads)
    return candidate if is_better and is_contiguous else None


def _keeps_order(kernel: Kernel) -> bool:
    """True if the last of several updates of one element must win."""
    stores = (kernel.body[number] for number in scattering_stores(kernel))
    return any(isinstance(s, Store) and s.mode is StoreMode.SET for s in stores)


def _last_axis(kernel: Kernel) -> Axis | None:
    """The outer axis whose blocks of lanes come in the points' own order."""
    return kernel.outer[-1] if kernel.outer and not kernel.reduction else None


def _axis_across(kernel: Kernel, lane: Axis) -> Axis | None:
    """The outer axis along which an access is contiguous that jumps along the lanes."""
    for axis in kernel.outer:
        for statement in kernel.body:
            if not isinstance(statement, Load | Store) or axis is lane:
                continue
            along = statement.index.coefficient_of(axis.name)
            jump = statement.index.coefficient_of(lane.name)
            jumps = jump is None or not (jump.is_constant and abs(jump.constant) <= 1)
            if along == as_expr(1) and jumps:
                return axis
    return None


def _lane_block(lane: Axis | None, *, has_reduction: bool) -> int:
    if lane is None:
        return 0
    block = REDUCTION_LANES if has_reduction else POINTWISE_LANES
    if lane.extent.is_constant and lane.extent.constant <= 2 * block:
        return max(lane.extent.constant, 1)
    return block


def _scratch(
    kernel: Kernel,
    phases: tuple[Phase, ...],
    final_stores: tuple[int, ...],
    varying: frozenset[int],
    indirect_of: dict[str, int],
) -> tuple[int, ...]:
    """Expensive varying values that several phases need and whose rows fit the stack."""
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
    return isinstance(statement, Compute) and statement.op in MATH_FUNCTIONS
