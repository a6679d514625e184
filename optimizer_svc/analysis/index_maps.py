"""Views as index maps, from the index of a view to the index of its operand."""

from __future__ import annotations

from collections.abc import Iterator

from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.graph_ir import Node, contiguous_strides
from optimizer_svc.analysis.graph_facts import exprs_attr, ints_attr

Index = tuple[Expr, ...]


def operand_index(node: Node, index: Index, operand_shape: Index, bounds: Bounds) -> Index:
    """The index in the operand of a view's element `index`.

    Raises:
        InternalError: the node is no view.
    """
    match node.op:
        case "reshape":
            return reshape_index(index, node.types[0].shape, operand_shape, bounds)
        case "permute":
            return _permuted(index, ints_attr(node, "dims"))
        case "broadcast_in_dim":
            dims = ints_attr(node, "dims")
            pairs = zip(operand_shape, dims, strict=True)
            return tuple(ZERO if extent is ONE else index[dim] for extent, dim in pairs)
        case "slice":
            starts, steps = exprs_attr(node, "starts"), exprs_attr(node, "steps")
            return tuple(a + i * s for i, a, s in zip(index, starts, steps, strict=True))
        case "flip":
            dims = ints_attr(node, "dims")
            return tuple(
                operand_shape[axis] - 1 - i if axis in dims else i for axis, i in enumerate(index)
            )
        case "window":
            return _windowed(node, index, len(operand_shape))
        case _:
            raise InternalError(f"{node.op} is no view")


def reshape_index(index: Index, shape: Index, old_shape: Index, bounds: Bounds) -> Index:
    """The element of `old_shape` with the row-major position of `index` in `shape`."""
    result = [ZERO] * len(old_shape)
    for new_axes, old_axes in reshape_groups(shape, old_shape):
        if len(new_axes) == 1 and len(old_axes) == 1:
            result[old_axes[0]] = index[new_axes[0]]
            continue
        strides = contiguous_strides(tuple(shape[axis] for axis in new_axes))
        linear = ZERO
        for axis, stride in zip(new_axes, strides, strict=True):
            linear = linear + index[axis] * stride
        for axis, part in zip(
            old_axes, unravel(linear, tuple(old_shape[a] for a in old_axes), bounds), strict=True
        ):
            result[axis] = part
    return tuple(result)


def unravel(linear: Expr, shape: Index, bounds: Bounds) -> Index:
    """The index of the element at a row-major position."""
    parts: list[Expr] = []
    for axis, (extent, stride) in enumerate(zip(shape, contiguous_strides(shape), strict=True)):
        part = linear // stride
        # The outermost axis needs no remainder, because the position is within the shape.
        parts.append(simplify(part if axis == 0 else part % extent, bounds))
    return tuple(parts)


def ravel(index: Index, shape: Index) -> Expr:
    """The row-major position of an element."""
    total = ZERO
    for part, stride in zip(index, contiguous_strides(shape), strict=True):
        total = total + part * stride
    return total


def reshape_groups(a: Index, b: Index) -> Iterator[tuple[list[int], list[int]]]:
    """Axes of two shapes with equally many elements, in the smallest groups of equal size.

    Extents of 1 are left out.
    """
    left = [axis for axis, extent in enumerate(a) if extent is not ONE]
    right = [axis for axis, extent in enumerate(b) if extent is not ONE]
    i = j = 0
    while i < len(left) and j < len(right):
        ends = _group_ends(a, b, (left, right), (i, j))
        if ends is None:
            break
        yield left[i : ends[0]], right[j : ends[1]]
        i, j = ends
    if i < len(left) or j < len(right):
        yield left[i:], right[j:]


def _group_ends(
    a: Index, b: Index, axes: tuple[list[int], list[int]], start: tuple[int, int]
) -> tuple[int, int] | None:
    """Ends of the next group; None if the sizes cannot be compared."""
    left, right = axes
    i, j = start[0] + 1, start[1] + 1
    size_a, size_b = a[left[start[0]]], b[right[start[1]]]
    while size_a is not size_b:
        if _is_smaller(size_a, size_b):
            if i == len(left):
                return None
            size_a, i = size_a * a[left[i]], i + 1
        elif _is_smaller(size_b, size_a):
            if j == len(right):
                return None
            size_b, j = size_b * b[right[j]], j + 1
        else:
            return None
    return i, j


def _is_smaller(a: Expr, b: Expr) -> bool:
    """True if `a` is a proper factor of `b`, or smaller if both are numbers."""
    if a.is_constant and b.is_constant:
        return a.constant < b.constant
    if b.is_constant or a is ZERO:
        return False
    return (b % a) is ZERO


def _windowed(node: Node, index: Index, rank: int) -> Index:
    result = list(index[:rank])
    strides, dilations = exprs_attr(node, "strides"), exprs_attr(node, "dilations")
    inner = zip(ints_attr(node, "dims"), strides, dilations, index[rank:], strict=True)
    for axis, stride, dilation, part in inner:
        result[axis] = result[axis] * stride + part * dilation
    return tuple(result)


def _permuted(index: Index, dims: tuple[int, ...]) -> Index:
    result = [ZERO] * len(dims)
    for axis, dim in enumerate(dims):
        result[dim] = index[axis]
    return tuple(result)
