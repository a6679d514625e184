"""Views as strides: whether a view of a buffer needs no copy, and its strides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.graph_ir import Node, contiguous_strides
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import GraphFacts, exprs_attr, ints_attr, operands
from optimizer_svc.analysis.index_maps import Index, reshape_groups
from optimizer_svc.analysis.verdicts import Refused


@dataclass(frozen=True, slots=True)
class StridedView:
    """A strided window on the storage of `source`.

    Units: strides and offset in elements.
    """

    source: int
    shape: Index
    strides: Index
    offset: Expr = ZERO


def view_between(facts: GraphFacts, value: int, source: StridedView) -> StridedView | Refused:
    """`value` as a window on the source's storage, through the views between them."""
    chain: list[Node] = []
    while value != source.source:
        node = facts.producers[value]
        chain.append(node)
        value = operands(node)[0]
    view = source
    for node in reversed(chain):
        found = viewed(node, view)
        if isinstance(found, Refused):
            return found
        view = found
    return view


def viewed(node: Node, view: StridedView) -> StridedView | Refused:
    """A view prim applied to a strided window.

    Raises:
        InternalError: the node is no view.
    """
    match node.op:
        case "reshape":
            return reshaped_view(view, node.types[0].shape)
        case "permute":
            dims = ints_attr(node, "dims")
            return replace(
                view,
                shape=tuple(view.shape[d] for d in dims),
                strides=tuple(view.strides[d] for d in dims),
            )
        case "broadcast_in_dim":
            return _broadcast(view, node)
        case "slice":
            return _sliced(view, node)
        case "flip":
            return Refused("a flipped axis has a negative stride")
        case "window":
            return _windowed(view, node)
        case _:
            raise InternalError(f"{node.op} is no view")


def is_dense(shape: Index, strides: Index) -> bool:
    """True if the elements fill their memory, in some order of the axes."""
    axes = {strides[n]: shape[n] for n in range(len(shape)) if shape[n] is not ONE}
    if len(axes) != sum(extent is not ONE for extent in shape):
        return False
    step = ONE
    while step in axes:
        step = step * axes.pop(step)
    return not axes


def order_in_memory(strides: Index) -> tuple[int, ...]:
    """The axes from the largest stride to the smallest; as they are, if some strides vary."""
    axes = range(len(strides))
    if not all(step.is_constant for step in strides):
        return tuple(axes)
    return tuple(sorted(axes, key=lambda axis: -strides[axis].constant))


def is_same_layout(shape: Index, a: Index, b: Index) -> bool:
    """True if two strides of one shape address the same elements; extents of 1 are ignored."""
    return all(x is y or e is ONE for e, x, y in zip(shape, a, b, strict=True))


def reshaped_view(view: StridedView, shape: Index) -> StridedView | Refused:
    """A window in another shape of as many elements."""
    strides = list(contiguous_strides(shape))
    if is_empty(shape):
        return replace(view, shape=shape, strides=tuple(strides))
    for new_axes, old_axes in reshape_groups(shape, view.shape):
        if not old_axes:
            return Refused("sizes of a reshape cannot be matched")
        for outer, inner in pairwise(old_axes):
            if view.strides[outer] is not view.strides[inner] * view.shape[inner]:
                return Refused("a reshape of axes that do not lie side by side needs a copy")
        step = view.strides[old_axes[-1]]
        for axis in reversed(new_axes):
            strides[axis] = step
            step = step * shape[axis]
    return replace(view, shape=shape, strides=tuple(strides))


def _broadcast(view: StridedView, node: Node) -> StridedView:
    shape, dims = node.types[0].shape, ints_attr(node, "dims")
    strides = [ZERO] * len(shape)
    for axis, dim in enumerate(dims):
        if view.shape[axis] is not ONE:
            strides[dim] = view.strides[axis]
    return replace(view, shape=shape, strides=tuple(strides))


def _windowed(view: StridedView, node: Node) -> StridedView:
    strides, inner = list(view.strides), []
    steps, dilations = exprs_attr(node, "strides"), exprs_attr(node, "dilations")
    for axis, step, dilation in zip(ints_attr(node, "dims"), steps, dilations, strict=True):
        inner.append(view.strides[axis] * dilation)
        strides[axis] = view.strides[axis] * step
    return replace(view, shape=node.types[0].shape, strides=(*strides, *inner))


def _sliced(view: StridedView, node: Node) -> StridedView:
    starts, steps = exprs_attr(node, "starts"), exprs_attr(node, "steps")
    offset = view.offset
    for start, stride in zip(starts, view.strides, strict=True):
        offset = offset + start * stride
    strides = tuple(step * stride for step, stride in zip(steps, view.strides, strict=True))
    return replace(view, shape=node.types[0].shape, strides=strides, offset=offset)
