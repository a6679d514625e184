"""Kernels that compute a block of what they stored whole: some axes run over a window.

A block is a range of successive elements of large temporary memory. Each outer axis that takes
longer steps there has one point in a block, one that reaches beyond it has a window of points, and
the others run as before. Where a window begins is a size of the kernel, so one kernel computes all
blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Literal, Load, Param, Reduce, Store
from optimizer_svc.analysis.score_blocks import divisors
from optimizer_svc.kernels.in_place import Pair, stored_in_place
from optimizer_svc.kernels.rewrite_indices import accesses, rewrite_indices


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """An axis of a kernel: its extent, and the elements of the memory from one point to the next.

    It is `fixed` if blocks cannot divide it: a reduction runs over it that is no sum over windows,
    or the memory is the same for all its points. If it `sums_products`, a window has several
    points: one product for each element is no work for a tile.
    """

    name: str
    extent: int
    elems: int
    fixed: bool
    sums_products: bool = False

    def window(self, block_elems: int) -> int | None:
        """How many points it has in a block; None if a block has no whole number of them."""
        if self.elems * self.extent <= block_elems:
            return self.extent
        if self.fixed:
            return None
        points = max(1, block_elems // self.elems)
        if points == 1 and self.sums_products:
            return None
        is_whole = points == 1 or (points * self.elems == block_elems and self.extent % points == 0)
        return points if is_whole else None


def memory_steps(kernel: Kernel, params: Collection[str]) -> tuple[MemoryStep, ...] | None:
    """The axes of a kernel by their steps in memory of constant size, the longest steps first.

    None if accesses to the memory, which `params` are, differ, or if an index is not linear.
    """
    indices = {access.index for access in accesses(kernel) if access.param in params}
    if kernel.sizes or len(indices) != 1:
        return None
    (index,), reduced = indices, frozenset(axis.name for axis in kernel.reduction)
    found, rest = [], index
    for axis in (*kernel.outer, *kernel.reduction):
        parts = rest.linear_in(axis.name)
        if parts is None or not parts[0].is_constant or not axis.extent.is_constant:
            return None
        elems, rest = parts[0].constant, parts[1]
        is_summed = axis.name in reduced and accumulating(kernel) is not None
        is_fixed = elems <= 0 or (axis.name in reduced and not is_summed)
        of_products = is_summed and _sums_products(kernel)
        found.append(MemoryStep(axis.name, axis.extent.constant, elems, is_fixed, of_products))
    if rest is not ZERO or any(step.elems < 0 for step in found):
        return None
    return tuple(sorted(found, key=lambda step: -step.elems))


def _sums_products(kernel: Kernel) -> bool:
    """True if a kernel multiplies elements before it sums them."""
    return any(isinstance(own, Compute) and own.op == "mul" for own in kernel.body)


def block_sizes(steps: tuple[MemoryStep, ...]) -> list[int]:
    """The elements of blocks in which one axis has a window, the largest first."""
    found = {
        step.elems * points for step in steps if not step.fixed for points in divisors(step.extent)
    }
    return sorted(found, reverse=True)


def window_starts(
    steps: tuple[MemoryStep, ...], block_elems: int, blocks: int
) -> list[dict[str, int]] | None:
    """For each block the first point of each axis that it divides; None if it is no block of them.

    The blocks of all axes are one behind the other in memory.
    """
    windows = {step.name: step.window(block_elems) for step in steps}
    last = 0
    for step in steps:
        points = windows[step.name]
        if points is None:
            return None
        last += (points - 1) * step.elems
    divided = [step for step in steps if windows[step.name] != step.extent]
    found = []
    for number in range(blocks):
        left = number * block_elems
        starts = {}
        for step in divided:
            starts[step.name] = left // step.elems
            left %= step.elems
            points = windows[step.name]
            if points is None or starts[step.name] + points > step.extent:
                return None
        found.append(starts)
        if left:
            return None
    return found if last < block_elems else None


def windows_of(steps: tuple[MemoryStep, ...], block_elems: int) -> dict[str, int]:
    """The points of the divided axes in a block."""
    windows = {step.name: step.window(block_elems) for step in steps}
    return {s.name: w for s in steps if (w := windows[s.name]) is not None and w != s.extent}


def is_block(
    kernel: Kernel,
    param: str,
    elems: int,
    windows: Mapping[str, int],
    starts: Sequence[Mapping[str, int]],
) -> bool:
    """True if windows use `elems` elements of other memory each, one block behind the other.

    `windows` are the points of the divided axes in a block, `starts` the first ones of each block.
    """
    for access in accesses(kernel):
        if access.param != param:
            continue
        rest, last, shifts = access.index, 0, dict[str, int]()
        for axis in (*kernel.outer, *kernel.reduction):
            parts = rest.linear_in(axis.name)
            if parts is None or not parts[0].is_constant or parts[0].constant < 0:
                return False
            shifts[axis.name], rest = parts[0].constant, parts[1]
            points = windows.get(axis.name, axis.extent.as_int())
            last += shifts[axis.name] * (points - 1)
        firsts = [sum(shifts[name] * at for name, at in own.items()) for own in starts]
        if rest is not ZERO or last >= elems:
            return False
        if firsts != [number * elems for number in range(len(starts))]:
            return False
    return True


def block_kernel(
    kernel: Kernel, windows: Mapping[str, int], local: Mapping[str, int], trimmed: str = ""
) -> Kernel:
    """The kernel of a block; its sizes are the first points of the divided axes, in order.

    `windows` are the points of these axes in a block, `local` the elements of the parameters that
    are memory of the block alone. Of the axis `trimmed`, if one is named, the last sizes are the
    first point and the number of points.
    """
    reduced = {axis.name for axis in kernel.reduction}
    sizes, shift, own = [], dict[str, Expr](), dict[str, Expr]()
    extents = {axis.name: axis.extent.as_int() for axis in (*kernel.outer, *kernel.reduction)}
    for number, (name, points) in enumerate(windows.items()):
        size = SizeSymbol(f"s{number}", 0, extents[name] - points)
        sizes.append(size)
        own[name] = ZERO if points == 1 and name not in reduced else symbol(name)
        shift[name] = own[name] + symbol(size.name)
        extents[name] = points
    lengths = {name: as_expr(extent) for name, extent in extents.items()}
    if trimmed:
        first = SizeSymbol(f"s{len(sizes)}", 0, extents[trimmed] - 1)
        length = SizeSymbol(f"s{len(sizes) + 1}", 1, extents[trimmed])
        sizes += (first, length)
        lengths[trimmed] = symbol(length.name)
        own[trimmed] = shift[trimmed] = symbol(trimmed) + symbol(first.name)
    moved = rewrite_indices(kernel, lambda expr: expr.substitute(shift))
    return replace(
        moved,
        params=tuple(
            replace(param, size_elems=as_expr(local.get(param.name, param.size_elems)))
            for param in kernel.params
        ),
        sizes=tuple(sizes),
        outer=tuple(
            Axis(axis.name, lengths[axis.name])
            for axis in kernel.outer
            if windows.get(axis.name) != 1
        ),
        reduction=tuple(Axis(axis.name, lengths[axis.name]) for axis in kernel.reduction),
        body=tuple(
            replace(after, index=before.index.substitute(own))
            if isinstance(before, Load | Store)
            and isinstance(after, Load | Store)
            and before.param in local
            else after
            for before, after in zip(kernel.body, moved.body, strict=True)
        ),
    )


def accumulating(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]] | None:
    """The kernel that adds its sums to those in memory; None if it stores anything else.

    The numbers are the old positions of the parameters, of which the result is one.
    """
    stores = [statement for statement in kernel.body if isinstance(statement, Store)]
    if len(stores) != 1 or kernel.body[-1] is not stores[0]:
        return None
    store = stores[0]
    made = kernel.body[store.value]
    result = next(n for n, param in enumerate(kernel.params) if param.name == store.param)
    param = kernel.params[result]
    is_sum = isinstance(made, Reduce) and made.op == "sum" and made.dtype is DType.F32
    if not is_sum or param.access is not Access.WRITE or param.dtype is not DType.F32:
        return None
    before = Param("before", param.dtype, param.size_elems, Access.READ)
    at = len(kernel.body) - 1
    body = (
        *kernel.body[:-1],
        Load(before.name, store.index),
        Compute("add", (at, store.value), DType.F32),
        replace(store, value=at + 1),
    )
    longer = replace(kernel, params=(*kernel.params, before), body=body)
    found, positions = stored_in_place(longer, [Pair(result, len(kernel.params))])
    return found, tuple(result if len(old) > 1 else old[0] for old in positions)


def cleared(param: Param) -> Kernel:
    """The kernel that stores zeros in memory of f32."""
    own = replace(param, name="out0", access=Access.WRITE)
    body = (Literal(DType.F32, 0.0), Store(own.name, symbol("d0"), 0))
    return Kernel("fused", (own,), (), (Axis("d0", param.size_elems),), (), body)
