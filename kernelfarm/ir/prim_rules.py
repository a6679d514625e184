"""Shape and element type rules of every prim.

`infer` gives the result types of a prim applied to operands of given types, or says which rule the
application breaks.

Two extents count as equal unless their difference is a number other than 0: different symbolic
extents may have equal values, for which the framework has installed guards.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, ceil_div, product_of
from kernelfarm.ir.extern_rule import check_extern
from kernelfarm.ir.graph_ir import Node, TensorType
from kernelfarm.ir.prim_attrs import (
    check_fits,
    dim_attr,
    dims_attr,
    dtype_attr,
    rule_broken,
    sizes_attr,
)
from kernelfarm.ir.prims import PRIMS, SCAN_OPS, SCATTER_MODES, PrimKind, scalar_result_dtype
from kernelfarm.ir.scalar_types import (
    check_combined_dtype,
    check_computed_in,
    check_reduce_operand,
    check_scalar_operands,
    check_scan_operand,
    reduce_result_dtype,
    scan_result_dtype,
)

Types = tuple[TensorType, ...]
Shape = tuple[Expr, ...]
Rule = Callable[[Node, Types], Types]

_INDEX_DTYPES = (DType.I32, DType.I64)


def infer(node: Node, operand_types: Types) -> Types:
    """Result types of a prim node; an extern node states its own.

    Raises:
        VerificationError: the op is not a prim, or a rule is broken; names the op, what was seen
        and
            what was expected.
    """
    prim = PRIMS.get(node.op)
    if prim is None:
        raise VerificationError(f"{node.op!r} is not a prim; see kernelfarm/ir/prims.py")
    if prim.arity is not None and len(operand_types) != prim.arity:
        raise VerificationError(f"{node.op}: {len(operand_types)} operands; expected {prim.arity}")
    names = tuple(sorted(name for name, _ in node.attrs if name not in prim.optional))
    if names != tuple(sorted(prim.attrs)):
        raise VerificationError(
            f"{node.op}: attributes {', '.join(names) or 'none'};"
            f" expected {', '.join(prim.attrs) or 'none'}"
        )
    results = _RULES[node.op](node, operand_types)
    check_computed_in(node.op, [tensor.dtype for tensor in (*operand_types, *results)])
    return results


def is_same_extent(left: Expr, right: Expr) -> bool:
    """False only if two extents differ by a number other than 0."""
    if left is right:
        return True
    difference = left - right
    return not difference.is_constant


def _text(shape: Shape) -> str:
    return f"[{', '.join(str(extent) for extent in shape)}]"


def _check_same_shape(node: Node, types: Types) -> None:
    first = types[0].shape
    for tensor in types[1:]:
        if tensor.shape == first:
            continue
        pairs = zip(tensor.shape, first, strict=False)
        if len(tensor.shape) != len(first) or not all(is_same_extent(a, b) for a, b in pairs):
            raise rule_broken(node, f"shapes {_text(first)} and {_text(tensor.shape)}", "one shape")


def _elementwise(node: Node, types: Types) -> Types:
    _check_same_shape(node, types)
    check_scalar_operands(node.op, tuple(tensor.dtype for tensor in types))
    dtype = scalar_result_dtype(node.op, types[-1].dtype)
    return (TensorType(dtype, types[0].shape),)


def _convert(node: Node, types: Types) -> Types:
    return (TensorType(dtype_attr(node), types[0].shape),)


def _full(node: Node, types: Types) -> Types:
    dtype, value = dtype_attr(node), node.attr("value")
    allowed: tuple[type, ...] = (float,)
    if dtype is DType.BOOL:
        allowed = (bool,)
    elif dtype.is_integer:
        allowed = (int, Expr)
    if type(value) not in allowed:
        names = " or ".join(kind.__name__ for kind in allowed)
        raise rule_broken(node, f"value={value!r} of {dtype.value}", f"a value of type {names}")
    if not isinstance(value, Expr):
        check_fits(node, value, dtype)
    shape = sizes_attr(node, "shape")
    _check_extents(node, shape)
    return (TensorType(dtype, shape),)


def _iota(node: Node, types: Types) -> Types:
    dtype, length = dtype_attr(node), node.attr("length")
    if not dtype.is_integer or not isinstance(length, Expr):
        raise rule_broken(
            node, f"length={length!r} of {dtype.value}", "an expression, an integer type"
        )
    _check_extents(node, (length,))
    return (TensorType(dtype, (length,)),)


def _check_extents(node: Node, shape: Shape) -> None:
    if any(extent.is_constant and extent.constant < 0 for extent in shape):
        raise rule_broken(node, f"shape {_text(shape)}", "extents of 0 or more")


def _reshape(node: Node, types: Types) -> Types:
    shape = sizes_attr(node, "shape")
    _check_extents(node, shape)
    if not is_same_extent(product_of(types[0].shape), product_of(shape)):
        raise rule_broken(
            node, f"{_text(types[0].shape)} as {_text(shape)}", "equal numbers of elements"
        )
    return (TensorType(types[0].dtype, shape),)


def _permute(node: Node, types: Types) -> Types:
    source = types[0]
    dims = dims_attr(node, source.rank)
    if len(dims) != source.rank:
        raise rule_broken(node, f"dims={dims}", f"all {source.rank} axes")
    return (TensorType(source.dtype, tuple(source.shape[dim] for dim in dims)),)


def _broadcast_in_dim(node: Node, types: Types) -> Types:
    source, shape = types[0], sizes_attr(node, "shape")
    _check_extents(node, shape)
    dims = dims_attr(node, len(shape))
    if len(dims) != source.rank or list(dims) != sorted(dims):
        raise rule_broken(
            node, f"dims={dims} for rank {source.rank}", "one rising result axis for each"
        )
    for extent, dim in zip(source.shape, dims, strict=True):
        if extent is not ONE and not is_same_extent(extent, shape[dim]):
            seen = f"{_text(source.shape)} to {_text(shape)} by dims={dims}"
            raise rule_broken(node, seen, "extents that are equal or 1")
    return (TensorType(source.dtype, shape),)


def _slice(node: Node, types: Types) -> Types:
    source = types[0]
    starts, limits, steps = (sizes_attr(node, name) for name in ("starts", "limits", "steps"))
    if not len(starts) == len(limits) == len(steps) == source.rank:
        raise rule_broken(node, f"{len(starts)} starts for rank {source.rank}", "one for each axis")
    shape = []
    for axis, extent in enumerate(source.shape):
        start, limit, step = starts[axis], limits[axis], steps[axis]
        in_order = _may_be_nonnegative(start, limit - start, extent - limit)
        if not in_order or not step.is_constant or step.constant < 1:
            seen = f"{start}:{limit}:{step} on axis {axis} of extent {extent}"
            raise rule_broken(node, seen, "0 <= start <= limit <= extent and a step of 1 or more")
        shape.append(ceil_div(limit - start, step))
    return (TensorType(source.dtype, tuple(shape)),)


def _may_be_nonnegative(*exprs: Expr) -> bool:
    return not any(expr.is_constant and expr.constant < 0 for expr in exprs)


def _flip(node: Node, types: Types) -> Types:
    dims_attr(node, types[0].rank)
    return (TensorType(types[0].dtype, types[0].shape),)


def _window(node: Node, types: Types) -> Types:
    source = types[0]
    dims = dims_attr(node, source.rank)
    sizes, strides, dilations = (
        sizes_attr(node, name) for name in ("sizes", "strides", "dilations")
    )
    if not len(sizes) == len(strides) == len(dilations) == len(dims) or list(dims) != sorted(dims):
        seen = f"dims={dims} with {len(sizes)} sizes, {len(strides)} strides"
        raise rule_broken(node, seen, "rising axes with one size, stride and dilation each")
    shape = list(source.shape)
    for axis, size, stride, dilation in zip(dims, sizes, strides, dilations, strict=True):
        last_start = source.shape[axis] - dilation * (size - 1) - 1
        if not _may_be_nonnegative(size - 1, stride - 1, dilation - 1, last_start):
            seen = f"a window of {size} by {dilation} on extent {source.shape[axis]}"
            raise rule_broken(
                node, seen, "sizes, strides and dilations >= 1, and a window that fits"
            )
        shape[axis] = last_start // stride + 1
    return (TensorType(source.dtype, (*shape, *sizes)),)


def _cat(node: Node, types: Types) -> Types:
    if not types:
        raise rule_broken(node, "no operands", "one or more")
    first = types[0]
    dim = dim_attr(node, first.rank)
    total = as_expr(0)
    for tensor in types:
        is_alike = tensor.dtype is first.dtype and tensor.rank == first.rank
        if not is_alike or not all(
            axis == dim or is_same_extent(a, b)
            for axis, (a, b) in enumerate(zip(tensor.shape, first.shape, strict=True))
        ):
            seen = f"{first.dtype}{_text(first.shape)} and {tensor.dtype}{_text(tensor.shape)}"
            raise rule_broken(node, seen, f"equal types except for the extent of axis {dim}")
        total = total + tensor.shape[dim]
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    return (TensorType(first.dtype, shape),)


def _pad(node: Node, types: Types) -> Types:
    source = types[0]
    low, high = sizes_attr(node, "low"), sizes_attr(node, "high")
    if not len(low) == len(high) == source.rank or not _may_be_nonnegative(*low, *high):
        raise rule_broken(node, f"low={low}, high={high}", f"{source.rank} sizes of 0 or more each")
    if not isinstance(node.attr("value"), int | float):
        raise rule_broken(node, f"value={node.attr('value')!r}", "a number")
    check_fits(node, node.attr("value"), source.dtype)
    triples = zip(low, source.shape, high, strict=True)
    return (TensorType(source.dtype, tuple(a + extent + b for a, extent, b in triples)),)


def _reduce(node: Node, types: Types) -> Types:
    source = types[0]
    dims = dims_attr(node, source.rank)
    if not dims or list(dims) != sorted(dims):
        raise rule_broken(node, f"dims={dims}", "one or more axes in rising order")
    check_reduce_operand(node.op, source.dtype)
    kept = tuple(extent for axis, extent in enumerate(source.shape) if axis not in dims)
    return (TensorType(reduce_result_dtype(node.op, source.dtype), kept),)


def _scan(node: Node, types: Types) -> Types:
    dim_attr(node, types[0].rank)
    check_scan_operand(node.op, types[0].dtype)
    return (TensorType(scan_result_dtype(node.op, types[0].dtype), types[0].shape),)


def _argsort(node: Node, types: Types) -> Types:
    dim_attr(node, types[0].rank)
    if not isinstance(node.attr("descending"), bool):
        raise rule_broken(node, f"descending={node.attr('descending')!r}", "a bool")
    return (TensorType(DType.I64, types[0].shape),)


def _check_index(node: Node, types: Types) -> None:
    for tensor in types:
        if tensor.dtype not in _INDEX_DTYPES:
            raise rule_broken(node, f"an index of {tensor.dtype.value}", "i32 or i64")


def _take(node: Node, types: Types) -> Types:
    source, index = types
    _check_index(node, (index,))
    dim = dim_attr(node, source.rank)
    shape = (*source.shape[:dim], *index.shape, *source.shape[dim + 1 :])
    return (TensorType(source.dtype, shape),)


def _gather_nd(node: Node, types: Types) -> Types:
    if len(types) < 2:
        raise rule_broken(node, f"{len(types)} operands", "a tensor and one or more indices")
    source, indices = types[0], types[1:]
    _check_index(node, indices)
    _check_same_shape(node, indices)
    dims = dims_attr(node, source.rank)
    if len(dims) != len(indices):
        raise rule_broken(
            node, f"dims={dims} for {len(indices)} indices", "one axis for each index"
        )
    rest = tuple(extent for axis, extent in enumerate(source.shape) if axis not in dims)
    return (TensorType(source.dtype, indices[0].shape + rest),)


def _scatter(node: Node, types: Types) -> Types:
    if len(types) < 3:
        raise rule_broken(node, f"{len(types)} operands", "a tensor, one or more indices, updates")
    base, indices, updates = types[0], types[1:-1], types[-1]
    _check_index(node, indices)
    _check_same_shape(node, indices)
    dims = dims_attr(node, base.rank)
    if len(dims) != len(indices):
        raise rule_broken(
            node, f"dims={dims} for {len(indices)} indices", "one axis for each index"
        )
    if node.attr("mode") not in SCATTER_MODES:
        raise rule_broken(node, f"mode={node.attr('mode')!r}", f"one of {', '.join(SCATTER_MODES)}")
    if node.attr("mode") != "set":
        check_combined_dtype(f"scatter {node.attr('mode')}", base.dtype)
    rest = tuple(extent for axis, extent in enumerate(base.shape) if axis not in dims)
    expected = indices[0].shape + rest
    is_same = len(expected) == updates.rank and all(
        is_same_extent(a, b) for a, b in zip(expected, updates.shape, strict=True)
    )
    if updates.dtype is not base.dtype or not is_same:
        seen = f"updates {updates.dtype.value}{_text(updates.shape)}"
        raise rule_broken(node, seen, f"{base.dtype.value}{_text(expected)}")
    return (TensorType(base.dtype, base.shape),)


def _gather_along(node: Node, types: Types) -> Types:
    source, index = types
    _check_index(node, (index,))
    dim = dim_attr(node, source.rank)
    pairs = list(zip(source.shape, index.shape, strict=False))
    fits = all(axis == dim or _may_be_nonnegative(a - b) for axis, (a, b) in enumerate(pairs))
    if source.rank != index.rank or not fits:
        seen = f"shapes {_text(source.shape)} and {_text(index.shape)}"
        raise rule_broken(node, seen, f"one rank, and an index no larger on axes other than {dim}")
    return (TensorType(source.dtype, index.shape),)


def _seed(node: Node, types: Types) -> Types:
    index = node.attr("index")
    if type(index) is not int or index < 0:
        raise rule_broken(node, f"index={index!r}", "an integer of 0 or more")
    return (TensorType(DType.I64, ()),)


def _extern(node: Node, types: Types) -> Types:
    check_extern(node)
    return node.types


_RULES: dict[str, Rule] = {
    **{
        prim.name: _elementwise
        for prim in PRIMS.values()
        if prim.kind in (PrimKind.ELEMENTWISE, PrimKind.PREDICATE)
    },
    **{prim.name: _reduce for prim in PRIMS.values() if prim.kind is PrimKind.REDUCE},
    "convert": _convert,
    "full": _full,
    "iota": _iota,
    "reshape": _reshape,
    "permute": _permute,
    "broadcast_in_dim": _broadcast_in_dim,
    "slice": _slice,
    "flip": _flip,
    "window": _window,
    "cat": _cat,
    "pad": _pad,
    **dict.fromkeys(SCAN_OPS, _scan),
    "argsort": _argsort,
    "scatter": _scatter,
    "take": _take,
    "gather_nd": _gather_nd,
    "gather_along": _gather_along,
    "seed": _seed,
    "extern": _extern,
}
