"""Shape and element type rules of every prim.

`infer` tells the result types of a prim applied to operands of given types, or says which rule the
application breaks. Attributes that state sizes hold expressions, attributes that state axes hold
integers: `normal_attrs` brings them into that form.

Two extents are taken as equal unless their difference is a number other than 0: symbolic extents
may be equal without looking so, and the framework has guarded that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.graph_ir import Arg, Node, TensorType
from kernelfarm.ir.prims import PRIMS, SCAN_OPS, SCATTER_MODES, PrimKind, scalar_result_dtype
from kernelfarm.ir.scalar_types import (
    check_combined_dtype,
    check_reduce_operand,
    check_scalar_operands,
    check_scan_operand,
    reduce_result_dtype,
    scan_result_dtype,
)
from kernelfarm.ir.symbolic import ONE, Expr, as_expr, ceil_div, product_of

Types = tuple[TensorType, ...]
Shape = tuple[Expr, ...]
Rule = Callable[[Node, Types], Types]

_SIZE_ATTRS = frozenset(
    {"shape", "length", "starts", "limits", "steps", "low", "high"}
    | {"sizes", "strides", "dilations"}
)
_INDEX_DTYPES = (DType.I32, DType.I64)


def infer(node: Node, operand_types: Types) -> Types:
    """Result types of a prim node; an extern node states its own.

    Raises:
        VerificationError: the op is no prim, or a rule is broken; names the op, what was seen and
            what was expected.
    """
    prim = PRIMS.get(node.op)
    if prim is None:
        raise VerificationError(f"{node.op!r} is no prim")
    if prim.arity is not None and len(operand_types) != prim.arity:
        raise VerificationError(f"{node.op}: {len(operand_types)} operands; expected {prim.arity}")
    names = tuple(sorted(name for name, _ in node.attrs))
    if names != tuple(sorted(prim.attrs)):
        raise VerificationError(
            f"{node.op}: attributes {', '.join(names) or 'none'};"
            f" expected {', '.join(prim.attrs) or 'none'}"
        )
    return _RULES[node.op](node, operand_types)


def normal_attrs(attrs: Mapping[str, Arg]) -> tuple[tuple[str, Arg], ...]:
    """Attributes sorted by name, sizes as expressions, a literal in the type of its dtype."""
    dtype = attrs.get("dtype")
    return tuple((name, _normal_attr(name, value, dtype)) for name, value in sorted(attrs.items()))


def _normal_attr(name: str, value: Arg, dtype: Arg) -> Arg:
    if name in _SIZE_ATTRS:
        return _as_sizes(value)
    if name == "value" and isinstance(dtype, DType) and isinstance(value, bool | int | float):
        return literal_of(dtype, value)
    return value


def literal_of(dtype: DType, value: float) -> bool | int | float:
    """A number as the literal of an element type: floats stay exact, bool means `!= 0`."""
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype is DType.BOOL else int(value)


def is_same_extent(left: Expr, right: Expr) -> bool:
    """False only if two extents differ by a number other than 0."""
    if left is right:
        return True
    difference = left - right
    return not difference.is_constant


def _as_sizes(value: Arg) -> Arg:
    if isinstance(value, tuple):
        return tuple(_as_sizes(item) for item in value)
    return as_expr(value) if isinstance(value, int) else value


def _fail(node: Node, seen: str, expected: str) -> VerificationError:
    return VerificationError(f"{node.op}: {seen}; expected {expected}")


def _text(shape: Shape) -> str:
    return f"[{', '.join(str(extent) for extent in shape)}]"


def _sizes(node: Node, name: str) -> Shape:
    value = node.attr(name)
    if not isinstance(value, tuple) or not all(isinstance(item, Expr) for item in value):
        raise _fail(node, f"{name}={value!r}", "a tuple of expressions")
    return cast(Shape, value)


def _dims(node: Node, rank: int, name: str = "dims") -> tuple[int, ...]:
    value = node.attr(name)
    if not isinstance(value, tuple) or not all(type(item) is int for item in value):
        raise _fail(node, f"{name}={value!r}", "a tuple of integers")
    dims = cast(tuple[int, ...], value)
    if len(set(dims)) != len(dims) or not all(0 <= dim < rank for dim in dims):
        raise _fail(node, f"{name}={dims}", f"distinct axes from 0 to {rank - 1}")
    return dims


def _dim(node: Node, rank: int) -> int:
    value = node.attr("dim")
    if type(value) is not int or not 0 <= value < rank:
        raise _fail(node, f"dim={value!r}", f"an axis from 0 to {rank - 1}")
    return value


def _dtype(node: Node) -> DType:
    value = node.attr("dtype")
    if not isinstance(value, DType):
        raise _fail(node, f"dtype={value!r}", "an element type")
    return value


def _check_same_shape(node: Node, types: Types) -> None:
    first = types[0].shape
    for tensor in types[1:]:
        if tensor.shape == first:
            continue
        pairs = zip(tensor.shape, first, strict=False)
        if len(tensor.shape) != len(first) or not all(is_same_extent(a, b) for a, b in pairs):
            raise _fail(node, f"shapes {_text(first)} and {_text(tensor.shape)}", "one shape")


def _elementwise(node: Node, types: Types) -> Types:
    _check_same_shape(node, types)
    check_scalar_operands(node.op, tuple(tensor.dtype for tensor in types))
    dtype = scalar_result_dtype(node.op, types[-1].dtype)
    return (TensorType(dtype, types[0].shape),)


def _convert(node: Node, types: Types) -> Types:
    return (TensorType(_dtype(node), types[0].shape),)


def _full(node: Node, types: Types) -> Types:
    dtype, value = _dtype(node), node.attr("value")
    allowed: tuple[type, ...] = (float,)
    if dtype is DType.BOOL:
        allowed = (bool,)
    elif dtype.is_integer:
        allowed = (int, Expr)
    if type(value) not in allowed:
        names = " or ".join(kind.__name__ for kind in allowed)
        raise _fail(node, f"value={value!r} of {dtype.value}", f"a value of type {names}")
    shape = _sizes(node, "shape")
    _check_extents(node, shape)
    return (TensorType(dtype, shape),)


def _iota(node: Node, types: Types) -> Types:
    dtype, length = _dtype(node), node.attr("length")
    if not dtype.is_integer or not isinstance(length, Expr):
        raise _fail(node, f"length={length!r} of {dtype.value}", "an expression, an integer type")
    _check_extents(node, (length,))
    return (TensorType(dtype, (length,)),)


def _check_extents(node: Node, shape: Shape) -> None:
    if any(extent.is_constant and extent.constant < 0 for extent in shape):
        raise _fail(node, f"shape {_text(shape)}", "extents of 0 or more")


def _reshape(node: Node, types: Types) -> Types:
    shape = _sizes(node, "shape")
    _check_extents(node, shape)
    if not is_same_extent(product_of(types[0].shape), product_of(shape)):
        raise _fail(node, f"{_text(types[0].shape)} as {_text(shape)}", "equal numbers of elements")
    return (TensorType(types[0].dtype, shape),)


def _permute(node: Node, types: Types) -> Types:
    source = types[0]
    dims = _dims(node, source.rank)
    if len(dims) != source.rank:
        raise _fail(node, f"dims={dims}", f"all {source.rank} axes")
    return (TensorType(source.dtype, tuple(source.shape[dim] for dim in dims)),)


def _broadcast_in_dim(node: Node, types: Types) -> Types:
    source, shape = types[0], _sizes(node, "shape")
    _check_extents(node, shape)
    dims = _dims(node, len(shape))
    if len(dims) != source.rank or list(dims) != sorted(dims):
        raise _fail(node, f"dims={dims} for rank {source.rank}", "one rising result axis for each")
    for extent, dim in zip(source.shape, dims, strict=True):
        if extent is not ONE and not is_same_extent(extent, shape[dim]):
            seen = f"{_text(source.shape)} to {_text(shape)} by dims={dims}"
            raise _fail(node, seen, "extents that are equal or 1")
    return (TensorType(source.dtype, shape),)


def _slice(node: Node, types: Types) -> Types:
    source = types[0]
    starts, limits, steps = (_sizes(node, name) for name in ("starts", "limits", "steps"))
    if not len(starts) == len(limits) == len(steps) == source.rank:
        raise _fail(node, f"{len(starts)} starts for rank {source.rank}", "one for each axis")
    shape = []
    for axis, extent in enumerate(source.shape):
        start, limit, step = starts[axis], limits[axis], steps[axis]
        in_order = _may_be_nonnegative(start, limit - start, extent - limit)
        if not in_order or not step.is_constant or step.constant < 1:
            seen = f"{start}:{limit}:{step} on axis {axis} of extent {extent}"
            raise _fail(node, seen, "0 <= start <= limit <= extent and a step of 1 or more")
        shape.append(ceil_div(limit - start, step))
    return (TensorType(source.dtype, tuple(shape)),)


def _may_be_nonnegative(*exprs: Expr) -> bool:
    return not any(expr.is_constant and expr.constant < 0 for expr in exprs)


def _flip(node: Node, types: Types) -> Types:
    _dims(node, types[0].rank)
    return (TensorType(types[0].dtype, types[0].shape),)


def _window(node: Node, types: Types) -> Types:
    source = types[0]
    dims = _dims(node, source.rank)
    sizes, strides, dilations = (_sizes(node, name) for name in ("sizes", "strides", "dilations"))
    if not len(sizes) == len(strides) == len(dilations) == len(dims) or list(dims) != sorted(dims):
        seen = f"dims={dims} with {len(sizes)} sizes, {len(strides)} strides"
        raise _fail(node, seen, "rising axes with one size, stride and dilation each")
    shape = list(source.shape)
    for axis, size, stride, dilation in zip(dims, sizes, strides, dilations, strict=True):
        room = source.shape[axis] - dilation * (size - 1) - 1
        if not _may_be_nonnegative(size - 1, stride - 1, dilation - 1, room):
            seen = f"a window of {size} by {dilation} on extent {source.shape[axis]}"
            raise _fail(node, seen, "sizes, strides and dilations >= 1, and a window that fits")
        shape[axis] = room // stride + 1
    return (TensorType(source.dtype, (*shape, *sizes)),)


def _cat(node: Node, types: Types) -> Types:
    if not types:
        raise _fail(node, "no operands", "one or more")
    first = types[0]
    dim = _dim(node, first.rank)
    total = as_expr(0)
    for tensor in types:
        is_alike = tensor.dtype is first.dtype and tensor.rank == first.rank
        if not is_alike or not all(
            axis == dim or is_same_extent(a, b)
            for axis, (a, b) in enumerate(zip(tensor.shape, first.shape, strict=True))
        ):
            seen = f"{first.dtype}{_text(first.shape)} and {tensor.dtype}{_text(tensor.shape)}"
            raise _fail(node, seen, f"equal types but for the extent of axis {dim}")
        total = total + tensor.shape[dim]
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    return (TensorType(first.dtype, shape),)


def _pad(node: Node, types: Types) -> Types:
    source = types[0]
    low, high = _sizes(node, "low"), _sizes(node, "high")
    if not len(low) == len(high) == source.rank or not _may_be_nonnegative(*low, *high):
        raise _fail(node, f"low={low}, high={high}", f"{source.rank} sizes of 0 or more each")
    if not isinstance(node.attr("value"), int | float):
        raise _fail(node, f"value={node.attr('value')!r}", "a number")
    triples = zip(low, source.shape, high, strict=True)
    return (TensorType(source.dtype, tuple(a + extent + b for a, extent, b in triples)),)


def _reduce(node: Node, types: Types) -> Types:
    source = types[0]
    dims = _dims(node, source.rank)
    if not dims or list(dims) != sorted(dims):
        raise _fail(node, f"dims={dims}", "one or more axes in rising order")
    check_reduce_operand(node.op, source.dtype)
    kept = tuple(extent for axis, extent in enumerate(source.shape) if axis not in dims)
    return (TensorType(reduce_result_dtype(node.op, source.dtype), kept),)


def _scan(node: Node, types: Types) -> Types:
    _dim(node, types[0].rank)
    check_scan_operand(node.op, types[0].dtype)
    return (TensorType(scan_result_dtype(node.op, types[0].dtype), types[0].shape),)


def _check_index(node: Node, types: Types) -> None:
    for tensor in types:
        if tensor.dtype not in _INDEX_DTYPES:
            raise _fail(node, f"an index of {tensor.dtype.value}", "i32 or i64")


def _take(node: Node, types: Types) -> Types:
    source, index = types
    _check_index(node, (index,))
    dim = _dim(node, source.rank)
    shape = (*source.shape[:dim], *index.shape, *source.shape[dim + 1 :])
    return (TensorType(source.dtype, shape),)


def _gather_nd(node: Node, types: Types) -> Types:
    if len(types) < 2:
        raise _fail(node, f"{len(types)} operands", "a tensor and one or more indices")
    source, indices = types[0], types[1:]
    _check_index(node, indices)
    _check_same_shape(node, indices)
    dims = _dims(node, source.rank)
    if len(dims) != len(indices):
        raise _fail(node, f"dims={dims} for {len(indices)} indices", "one axis for each index")
    rest = tuple(extent for axis, extent in enumerate(source.shape) if axis not in dims)
    return (TensorType(source.dtype, indices[0].shape + rest),)


def _scatter(node: Node, types: Types) -> Types:
    if len(types) < 3:
        raise _fail(node, f"{len(types)} operands", "a tensor, one or more indices, updates")
    base, indices, updates = types[0], types[1:-1], types[-1]
    _check_index(node, indices)
    _check_same_shape(node, indices)
    dims = _dims(node, base.rank)
    if len(dims) != len(indices):
        raise _fail(node, f"dims={dims} for {len(indices)} indices", "one axis for each index")
    if node.attr("mode") not in SCATTER_MODES:
        raise _fail(node, f"mode={node.attr('mode')!r}", f"one of {', '.join(SCATTER_MODES)}")
    if node.attr("mode") != "set":
        check_combined_dtype(f"scatter {node.attr('mode')}", base.dtype)
    rest = tuple(extent for axis, extent in enumerate(base.shape) if axis not in dims)
    wanted = indices[0].shape + rest
    is_same = len(wanted) == updates.rank and all(
        is_same_extent(a, b) for a, b in zip(wanted, updates.shape, strict=True)
    )
    if updates.dtype is not base.dtype or not is_same:
        seen = f"updates {updates.dtype.value}{_text(updates.shape)}"
        raise _fail(node, seen, f"{base.dtype.value}{_text(wanted)}")
    return (TensorType(base.dtype, base.shape),)


def _gather_along(node: Node, types: Types) -> Types:
    source, index = types
    _check_index(node, (index,))
    dim = _dim(node, source.rank)
    pairs = list(zip(source.shape, index.shape, strict=False))
    fits = all(axis == dim or _may_be_nonnegative(a - b) for axis, (a, b) in enumerate(pairs))
    if source.rank != index.rank or not fits:
        seen = f"shapes {_text(source.shape)} and {_text(index.shape)}"
        raise _fail(node, seen, f"one rank, and an index no larger on axes other than {dim}")
    return (TensorType(source.dtype, index.shape),)


def _extern(node: Node, types: Types) -> Types:
    known = (type(node.attr("is_contraction")), type(node.attr("node")), type(node.attr("op")))
    if known != (bool, int, str):
        raise _fail(node, f"attributes {dict(node.attrs)}", "is_contraction, node and op")
    for tensor in node.types:
        if tensor.strides is None or len(tensor.strides) != tensor.rank:
            raise _fail(node, f"strides {tensor.strides} of a result", "one stride for each axis")
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
    "scatter": _scatter,
    "take": _take,
    "gather_nd": _gather_nd,
    "gather_along": _gather_along,
    "extern": _extern,
}
