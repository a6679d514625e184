"""Rules for gathers whose indices count up: they become slices, which need no memory access.

Attention masks contain such gathers: a mask that is indexed by two ranges is the mask itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from frontend_svc.decompose.rules.arithmetic import number_of
from frontend_svc.decompose.rules.views import reshaped
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Node, Ref

Operands = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountingIndex:
    """An index: start + position along one axis of the index tensor; without an axis, start."""

    axis: int | None
    start: Expr


def take(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A take by a counting vector is a slice."""
    source, index = operands
    if builder.type_of(index).rank != 1:
        return None
    count = count_of(builder, index)
    dim = cast(int, node.attr("dim"))
    shape = builder.type_of(source).shape
    if count is None or count.axis is None:
        return None
    length = builder.type_of(index).shape[0]
    if not _is_inside(count.start, length, shape[dim]):
        return None
    limits = [*shape[:dim], count.start + length, *shape[dim + 1 :]]
    starts = [count.start if axis == dim else ZERO for axis in range(len(shape))]
    return _slice(builder, source, starts, limits)


def gather_nd(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A gather by counting indices along different axes is a slice with rearranged axes."""
    source, *indices = operands
    counts = [count_of(builder, index) for index in indices]
    dims = cast(tuple[int, ...], node.attr("dims"))
    index_shape = builder.type_of(indices[0]).shape
    shape = builder.type_of(source).shape
    known = [count for count in counts if count is not None]
    axes = [count.axis for count in known if count.axis is not None]
    if len(known) != len(counts) or len(set(axes)) != len(axes):
        return None
    starts, limits = [ZERO] * len(shape), list(shape)
    for dim, count in zip(dims, known, strict=True):
        length = ONE if count.axis is None else index_shape[count.axis]
        if not _is_inside(count.start, length, shape[dim]):
            return None
        starts[dim], limits[dim] = count.start, count.start + length
    part = _slice(builder, source, starts, limits)
    targets = [None if count.axis is None else count.axis for count in known]
    return _laid_out(builder, node, part, dict(zip(dims, targets, strict=True)), len(index_shape))


def count_of(builder: GraphBuilder, value: int) -> CountingIndex | None:
    """The counting index that a value is; None if its definition does not show one."""
    node = builder.definer_of(value)
    if node is None:
        return None
    number = number_of(builder, value)
    if number is not None:
        return CountingIndex(None, as_expr(int(number))) if number >= 0 else None
    reader = _READERS.get(node.op)
    return None if reader is None else reader(builder, node)


def _counted(builder: GraphBuilder, node: Node) -> CountingIndex:
    return CountingIndex(0, ZERO)


def _converted(builder: GraphBuilder, node: Node) -> CountingIndex | None:
    return count_of(builder, _operands(node)[0])


def _shifted(builder: GraphBuilder, node: Node) -> CountingIndex | None:
    operands = _operands(node)
    for known, other in (operands, operands[::-1]):
        number = number_of(builder, known)
        count = None if number is None else count_of(builder, other)
        if number is not None and count is not None and number >= 0:
            return CountingIndex(count.axis, count.start + int(number))
    return None


def _broadcast(builder: GraphBuilder, node: Node) -> CountingIndex | None:
    operand = _operands(node)[0]
    count = count_of(builder, operand)
    if count is None or count.axis is None:
        return count
    dims = cast(tuple[int, ...], node.attr("dims"))
    # An axis of extent 1 may be repeated: then every position is the first one.
    is_single = builder.type_of(operand).shape[count.axis] is ONE
    return CountingIndex(None if is_single else dims[count.axis], count.start)


def _reshaped(builder: GraphBuilder, node: Node) -> CountingIndex | None:
    operand = _operands(node)[0]
    count = count_of(builder, operand)
    before, after = builder.type_of(operand).shape, node.types[0].shape
    if count is None or count.axis is None or before[count.axis] is ONE:
        return None if count is None else CountingIndex(None, count.start)
    axes = [axis for axis, extent in enumerate(after) if extent is not ONE]
    is_alone = all(extent is ONE for axis, extent in enumerate(before) if axis != count.axis)
    return CountingIndex(axes[0], count.start) if is_alone and len(axes) == 1 else None


_READERS: dict[str, Callable[[GraphBuilder, Node], CountingIndex | None]] = {
    "add": _shifted,
    "broadcast_in_dim": _broadcast,
    "convert": _converted,
    "iota": _counted,
    "reshape": _reshaped,
}
"""Prims that keep or change a counting index."""


def _operands(node: Node) -> list[int]:
    return [cast(Ref, arg).value for arg in node.args]


def _is_inside(start: Expr, length: Expr, extent: Expr) -> bool:
    rest = extent - start - length
    return rest.is_constant and rest.constant >= 0 and start.is_constant


def _slice(builder: GraphBuilder, source: int, starts: list[Expr], limits: list[Expr]) -> int:
    shape = builder.type_of(source).shape
    if tuple(limits) == shape and all(start is ZERO for start in starts):
        return source
    steps = (ONE,) * len(shape)
    return builder.add("slice", source, limits=tuple(limits), starts=tuple(starts), steps=steps)


def _laid_out(
    builder: GraphBuilder, node: Node, part: int, targets: dict[int, int | None], index_rank: int
) -> int:
    """The slice with its gathered axes among the index axes, and the other axes behind."""
    shape = builder.type_of(part).shape
    rest = iter(range(index_rank, node.types[0].rank))
    placed: list[tuple[int, int]] = []
    for axis in range(len(shape)):
        target = targets[axis] if axis in targets else next(rest)
        if target is not None:
            placed.append((target, axis))
    kept = [axis for _, axis in sorted((axis, axis) for _, axis in placed)]
    value = reshaped(builder, part, tuple(shape[axis] for axis in kept))
    order = [kept.index(axis) for _, axis in sorted(placed)]
    if order != list(range(len(order))):
        value = builder.add("permute", value, dims=tuple(order))
    dims = tuple(target for target, _ in sorted(placed))
    result_shape = node.types[0].shape
    if builder.type_of(value).shape == result_shape:
        return value
    return builder.add("broadcast_in_dim", value, dims=dims, shape=result_shape)
