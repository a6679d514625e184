"""Whether a reduction should be split into slices that are reduced in parallel, and into how many.

The unit of time is a byte that memory moves at full speed. A reduction by too few programs moves
its operand slowly; a split one has a second launch, and partial results that are written and read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import (
    ONE,
    Expr,
    as_expr,
    ceil_div,
    maximum,
    minimum,
    product_of,
)
from kernelfarm.ir.graph_ir import Node, contiguous_strides
from kernelfarm.ir.prims import SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import MemoryFacts
from optimizer_svc.analysis.extents import UNKNOWN_SIZE, likely_elems
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts, ints_attr, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.strided_views import order_in_memory
from optimizer_svc.analysis.verdicts import Refused

COLUMNS_A_PROGRAM = 128
"""Neighbouring columns that one program reduces."""
OVERSUBSCRIPTION = 4
"""Programs of a split reduction of rows for each of those that use the whole bandwidth: several run
on a multiprocessor, and all should end at about the same time."""
COLUMN_OVERSUBSCRIPTION = 2
"""The same for columns, whose programs have more loads under way."""
_SATURATING_COLUMNS = 4 / 3
"""Programs of columns that use the whole bandwidth, for each one of rows: on an H200, 128 programs
sum 16,384 columns of 1 GiB at 76% of a copy's speed, 256 programs 32,768 columns at 101."""
SHORT_SLICE = 160
"""Shorter slices of columns are doubled if most multiprocessors keep a program: on an H200, 8,192 x
768 elements take 0.94 of the time in 32 slices instead of 64."""
_MANY_PROGRAMS = 2.8
"""The programs, as a multiple of those that use the whole bandwidth, whose number may be halved."""
MIN_SLICE = 16
"""The fewest elements of a slice along the axis that is split."""
MAX_SLICES = 512
"""The most partial results for one result; the second kernel reduces them in one program."""
_MIN_GAIN = 1.25
"""Judgement: the estimate must be lower by a fifth."""
_LONG_RUN = 1 << 16
"""The elements of a run of varying size for which its reduction is judged. Slices of a run that
turns out to be short cost a launch, and a long run that stays whole takes any number of times as
long."""
_MAX_VISITED = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring axes of a shape, from `start` up to `stop`, that are reduced as one."""

    start: int
    stop: int
    extent: Expr


@dataclass(frozen=True, slots=True)
class Split:
    """The number of slices of a run of axes, and why.

    The number follows from sizes that vary. `strides` are those of the memory from which the
    operand is computed. If `order` is not empty, the run and the strides are those of the operand
    with its axes in this order.
    """

    run: Run
    slices: Expr
    reason: str
    strides: Index
    order: tuple[int, ...] = ()


def choose_split(
    facts: GraphFacts, node: Node, memory: MemoryFacts, likely: Mapping[str, int]
) -> Split | Refused:
    """How to split a reduction, or why it stays whole."""
    idle = memory.saturating_programs
    if idle is None:
        return Refused("the target splits no reductions")
    (value,) = operands(node)
    shape, dims = facts.types[value].shape, ints_attr(node, "dims")
    strides = memory_strides(facts, value)
    order = _order_in_memory(dims, strides)
    if order:
        shape, strides = (tuple(of[axis] for axis in order) for of in (shape, strides))
        dims = reordered(dims, order)
    runs = _runs(shape, dims)
    if not runs or (node.op in ("argmax", "argmin") and len(runs) > 1):
        return Refused("the axes are no run of neighbours")
    result = facts.types[node.results[0]]
    results = likely_elems(result.shape, likely)
    are_rows = _innermost(shape, strides) in dims
    programs = max(1, results if are_rows else -(-results // COLUMNS_A_PROGRAM))
    saturating = OVERSUBSCRIPTION * idle if are_rows else COLUMN_OVERSUBSCRIPTION * idle
    run, slices = _run_to_split(runs, shape, saturating // programs, likely)
    extent = likely_elems((run.extent,), likely)
    if not are_rows:
        slices = _in_longer_slices(slices, extent, programs, idle)
    busy = idle if are_rows else round(_SATURATING_COLUMNS * idle)
    if programs >= busy or slices <= 1:
        return Refused(f"{programs} programs are enough, or the rows too short")
    read = _bytes_read(facts, value, likely)
    if not run.extent.is_constant:
        read = read * _long_extent(run.extent, likely) // extent
    whole = read * busy / programs
    partial = 2 * slices * results * result.dtype.itemsize_bytes
    split = read * max(1.0, busy / (programs * slices)) + memory.launch_bytes + partial
    if whole < _MIN_GAIN * split:
        return Refused(f"{read} bytes are too few to split")
    reason = (
        f"{programs} programs would take as long as memory for {round(whole)} bytes,"
        f" {programs * slices} programs and a second kernel as long as for {round(split)}"
    )
    count = as_expr(slices)
    if not (run.extent.is_constant and product_of(list(result.shape)).is_constant):
        columns = 1 if are_rows else COLUMNS_A_PROGRAM
        count = _varying_slices(run.extent, product_of(list(result.shape)), columns, saturating)
    return Split(run, count, reason, strides, order)


def _long_extent(extent: Expr, likely: Mapping[str, int]) -> int:
    """The elements of a run, up to `_LONG_RUN`, if sizes without a known limit are large."""
    sizes = {name: likely.get(name, UNKNOWN_SIZE) for name in extent.symbols}
    large = {n: _LONG_RUN if size >= UNKNOWN_SIZE else size for n, size in sizes.items()}
    return max(extent.estimate(sizes), min(extent.estimate(large), _LONG_RUN))


def _varying_slices(extent: Expr, results: Expr, columns: int, saturating: int) -> Expr:
    """As many slices as give `saturating` programs, if slices are no shorter than they should be.

    A program reduces so many `columns`.
    """
    most = as_expr(min(saturating, MAX_SLICES))
    wanted = ceil_div(most, maximum(ceil_div(results, columns), 1))
    return maximum(minimum(wanted, extent // MIN_SLICE), 1)


def reordered(dims: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Where axes are after a permutation, in ascending order."""
    return tuple(sorted(order.index(dim) for dim in dims)) if order else dims


def _order_in_memory(dims: tuple[int, ...], strides: Index) -> tuple[int, ...]:
    """The order of axes in memory, if it makes one run of reduced axes that are none in the shape.

    So are the pixels of all images whose channels are last in memory. Empty if it makes none, or if
    it changes the order of the axes that are kept.
    """
    if len(_runs_of(dims)) < 2:
        return ()
    order = order_in_memory(strides)
    kept = [axis for axis in order if axis not in dims]
    return order if kept == sorted(kept) and len(_runs_of(reordered(dims, order))) == 1 else ()


def memory_strides(facts: GraphFacts, value: int) -> Index:
    """The strides of the memory from which a value is computed, or of its own.

    Pointwise prims keep the axes of what they read. Without strides, memory is row-major.
    """
    seen, pending = {value}, [value]
    while pending and len(seen) <= _MAX_VISITED:
        spend()
        current = pending.pop(0)
        tensor = facts.types[current]
        if tensor.strides is not None and facts.numel(current) is facts.numel(value):
            return tensor.strides
        node = facts.producers.get(current)
        if node is not None and node.op in SCALAR_OPS:
            fresh = [made for made in operands(node) if made not in seen]
            seen.update(fresh)
            pending += fresh
    return contiguous_strides(facts.types[value].shape)


def _innermost(shape: Index, strides: Index) -> int:
    """The axis whose elements are adjacent in memory; the last one if none are."""
    inner = [
        number
        for number, (extent, step) in enumerate(zip(shape, strides, strict=True))
        if step is ONE and extent is not ONE
    ]
    return inner[-1] if inner else len(shape) - 1


def _runs(shape: tuple[Expr, ...], dims: tuple[int, ...]) -> list[Run]:
    return [
        Run(run.start, run.stop, product_of(shape[run.start : run.stop])) for run in _runs_of(dims)
    ]


def _runs_of(dims: tuple[int, ...]) -> list[range]:
    """Ascending axes as ranges of neighbours."""
    runs: list[range] = []
    for dim in dims:
        if runs and runs[-1].stop == dim:
            runs[-1] = range(runs[-1].start, dim + 1)
        else:
            runs.append(range(dim, dim + 1))
    return runs


def _run_to_split(
    runs: list[Run], shape: Index, wanted: int, likely: Mapping[str, int]
) -> tuple[Run, int]:
    """The run with the most slices, and their number; one without a rest if there is one."""
    found = [
        (run, _slices(run, shape[run.start : run.stop], wanted, likely), run.extent) for run in runs
    ]
    even = [
        (run, slices, extent)
        for run, slices, extent in found
        if slices > 1 and extent.is_constant and extent.constant % slices == 0
    ]
    run, slices, _ = max(even or found, key=lambda f: (f[1], likely_elems((f[2],), likely)))
    return run, slices


def _slices(run: Run, extents: Index, wanted: int, likely: Mapping[str, int]) -> int:
    """A power of two; for a known extent another number near it, if that divides the extent.

    Slices of whole rows, or of equal parts of them, are preferred: their loops are those of kernels
    that compute or store the elements, too. `extents` are those of the run's axes.
    """
    extent = likely_elems((run.extent,), likely)
    most = min(MAX_SLICES, extent // MIN_SLICE)
    slices = 1
    while slices < wanted and 2 * slices <= most:
        slices *= 2
    if run.extent.is_constant:
        near = [*range(slices, 2 * slices), *range(slices - 1, max(1, slices // 2) - 1, -1)]
        even = [n for n in near if extent % n == 0 and n <= most]
        slices = next((n for n in even if _divides_axes(n, extents)), even[0] if even else slices)
    return slices


def _in_longer_slices(slices: int, extent: int, programs: int, idle: int) -> int:
    """Fewer slices if they are short, and most multiprocessors still have a program."""
    while (
        slices % 2 == 0
        and extent < SHORT_SLICE * slices
        and _MANY_PROGRAMS * idle < programs * slices
    ):
        slices //= 2
    return slices


def _divides_axes(slices: int, extents: Index) -> bool:
    """True if slices are positions along the first axes, or equal parts of the last of these."""
    for extent in extents:
        if slices % extent.constant:
            return extent.constant % slices == 0
        slices //= extent.constant
    return slices == 1


def _bytes_read(facts: GraphFacts, value: int, likely: Mapping[str, int]) -> int:
    """The bytes of the tensors from which pointwise prims and views compute a value.

    A value that several nodes read is one of them if it has fewer bytes than what it is computed
    from: so a sum that grows with each layer of a model counts once. Tensors that are much smaller
    than the value are left out: caches hold them.
    """
    sources = _Sources(facts, likely, likely_elems(facts.types[value].shape, likely) // 2)
    return sources.size_bytes(sources.of(value))


class _Sources:
    """Finds what a value is computed from; `least` are the elements of the smallest such tensor."""

    def __init__(self, facts: GraphFacts, likely: Mapping[str, int], least: int) -> None:
        self._facts, self._likely, self._least = facts, likely, least
        self._found: dict[int, frozenset[int]] = {}

    def of(self, value: int) -> frozenset[int]:
        """The tensors from which a value is computed; it alone if no pointwise prim computes it.

        After `_MAX_VISITED` values the next ones are taken as they are, which bounds the recursion.
        """
        if value in self._found:
            return self._found[value]
        spend()
        alone = frozenset((value,))
        node = self._facts.producers.get(value)
        is_stored = node is None or not (node.op in SCALAR_OPS or node.op in VIEW_OPS)
        if is_stored or len(self._found) >= _MAX_VISITED:
            self._found[value] = alone if node is None or node.op != "full" else frozenset()
            return self._found[value]
        assert node is not None  # else it is stored
        self._found[value] = alone  # counts as visited
        found = frozenset[int]().union(*map(self.of, operands(node)))
        if len(self._facts.consumers.get(value, ())) > 1:
            found = min(found, alone, key=self.size_bytes)
        self._found[value] = found
        return found

    def size_bytes(self, values: frozenset[int]) -> int:
        """The bytes of tensors that are not much smaller than the value."""
        total = 0
        for value in values:
            tensor = self._facts.types.get(value)
            elems = 0 if tensor is None else likely_elems(tensor.shape, self._likely)
            if tensor is not None and elems >= self._least:
                total += elems * tensor.dtype.itemsize_bytes
        return total


def slice_length(run: Run, slices: Expr) -> tuple[Expr, bool]:
    """The elements of each slice, and whether the slices hold exactly the elements of the run."""
    is_known = run.extent.is_constant and slices.is_constant
    is_exact = is_known and run.extent.constant % slices.constant == 0
    return ceil_div(run.extent, slices), is_exact
