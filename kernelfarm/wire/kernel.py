"""Codec of loop kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.internal.v1 import loops_pb2 as pb
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Param,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    StoreMode,
)
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import expr_from_proto, expr_to_proto
from kernelfarm.wire.hint import hint_from_proto, hint_to_proto
from kernelfarm.wire.names import MAX_TEXT_CHARS, checked_name
from kernelfarm.wire.tensor_type import check_size_range

_ACCESS = {
    Access.READ: pb.ACCESS_READ,
    Access.WRITE: pb.ACCESS_WRITE,
    Access.READ_WRITE: pb.ACCESS_READ_WRITE,
}
_MODES = {
    StoreMode.SET: pb.STORE_MODE_UNSPECIFIED,
    StoreMode.ADD: pb.STORE_MODE_ADD,
    StoreMode.MUL: pb.STORE_MODE_MUL,
    StoreMode.MIN: pb.STORE_MODE_MIN,
    StoreMode.MAX: pb.STORE_MODE_MAX,
}
_MODES_BACK: dict[int, StoreMode] = {
    **{number: mode for mode, number in _MODES.items()},
    pb.STORE_MODE_SET: StoreMode.SET,
}
_ACCESS_BACK: dict[int, Access] = {number: access for access, number in _ACCESS.items()}


def kernel_to_proto(kernel: Kernel) -> pb.Kernel:
    """The message of a kernel, without the hints of its sizes.

    Raises:
        InvalidGraphError: an integer has more than 64 bits.
    """
    return pb.Kernel(
        name=kernel.name,
        params=[_param_to_proto(param) for param in kernel.params],
        sizes=[pb.SizeParam(name=s.name, lower=s.lower, upper=s.upper or 0) for s in kernel.sizes],
        outer=[_axis_to_proto(axis) for axis in kernel.outer],
        reduction=[_axis_to_proto(axis) for axis in kernel.reduction],
        body=[_ENCODERS[type(statement)](statement) for statement in kernel.body],
        comments=kernel.comments,
        hints=[hint_to_proto(hint) for hint in kernel.hints],
    )


def kernel_from_proto(message: pb.Kernel) -> Kernel:
    """The kernel of a message; `verify_kernel` checks its rules.

    Raises:
        MalformedMessageError: a required part is missing or unknown.
        UnsupportedDTypeError: an element type is unknown.
        InvalidGraphError: a size's range is empty, or there is a division by a constant below 1.
    """
    where = f"kernel {checked_name(message.name, 'a kernel')}"
    return Kernel(
        name=message.name,
        params=tuple(_param_from_proto(param, where) for param in message.params),
        sizes=tuple(_size_from_proto(size, where) for size in message.sizes),
        outer=tuple(_axis_from_proto(axis, where) for axis in message.outer),
        reduction=tuple(_axis_from_proto(axis, where) for axis in message.reduction),
        body=tuple(_statement(i, statement, where) for i, statement in enumerate(message.body)),
        comments=tuple(
            checked_name(text, f"{where}: a comment", MAX_TEXT_CHARS) for text in message.comments
        ),
        hints=tuple(hint_from_proto(hint, where) for hint in message.hints),
    )


def _param_to_proto(param: Param) -> pb.Param:
    return pb.Param(
        name=param.name,
        dtype=dtype_to_proto(param.dtype),
        size_elems=expr_to_proto(param.size_elems),
        access=_ACCESS[param.access],
    )


def _param_from_proto(message: pb.Param, where: str) -> Param:
    where = f"{where}, parameter {checked_name(message.name, 'a parameter')}"
    access = _ACCESS_BACK.get(message.access)
    if access is None:
        raise MalformedMessageError(
            f"{where}: access number {message.access}; expected one of {sorted(_ACCESS_BACK)}"
        )
    size_elems = expr_from_proto(message.size_elems, where)
    return Param(message.name, dtype_from_proto(message.dtype, where), size_elems, access)


def _size_from_proto(message: pb.SizeParam, where: str) -> SizeSymbol:
    upper = message.upper or None
    check_size_range(message.name, message.lower, upper, where)
    return SizeSymbol(message.name, message.lower, upper)


def _axis_to_proto(axis: Axis) -> pb.Axis:
    return pb.Axis(name=axis.name, extent=expr_to_proto(axis.extent))


def _axis_from_proto(message: pb.Axis, where: str) -> Axis:
    name = checked_name(message.name, f"{where}: an axis")
    return Axis(name, expr_from_proto(message.extent, f"{where}, axis {name}"))


def _load_to_proto(load: Load) -> pb.Statement:
    index = expr_to_proto(load.index)
    return pb.Statement(
        load=pb.Load(param=load.param, index=index, mask=load.mask, other=load.other)
    )


def _literal_to_proto(literal: Literal) -> pb.Statement:
    dtype = dtype_to_proto(literal.dtype)
    if literal.dtype.is_float:
        return pb.Statement(literal=pb.Literal(dtype=dtype, real=literal.value))
    return pb.Statement(literal=pb.Literal(dtype=dtype, integer=int(literal.value)))


def _index_value_to_proto(value: IndexValue) -> pb.Statement:
    expr = expr_to_proto(value.expr)
    return pb.Statement(index_value=pb.IndexValue(dtype=dtype_to_proto(value.dtype), expr=expr))


def _compute_to_proto(compute: Compute) -> pb.Statement:
    dtype = dtype_to_proto(compute.dtype)
    return pb.Statement(compute=pb.Compute(op=compute.op, operands=compute.operands, dtype=dtype))


def _reduce_to_proto(reduce: Reduce) -> pb.Statement:
    dtype = dtype_to_proto(reduce.dtype)
    return pb.Statement(reduce=pb.Reduce(op=reduce.op, operand=reduce.operand, dtype=dtype))


def _scan_to_proto(scan: Scan) -> pb.Statement:
    dtype = dtype_to_proto(scan.dtype)
    return pb.Statement(scan=pb.Scan(op=scan.op, operand=scan.operand, dtype=dtype))


def _sort_to_proto(sort: Sort) -> pb.Statement:
    return pb.Statement(sort=pb.Sort(operand=sort.operand, descending=sort.descending))


def _store_to_proto(store: Store) -> pb.Statement:
    index = expr_to_proto(store.index)
    return pb.Statement(
        store=pb.Store(param=store.param, index=index, value=store.value, mode=_MODES[store.mode])
    )


def _indirect_to_proto(indirect: Indirect) -> pb.Statement:
    extent = expr_to_proto(indirect.extent)
    return pb.Statement(
        indirect=pb.IndirectIndex(symbol=indirect.symbol, value=indirect.value, extent=extent)
    )


_ENCODERS: dict[type, Callable[[Any], pb.Statement]] = {
    Load: _load_to_proto,
    Literal: _literal_to_proto,
    IndexValue: _index_value_to_proto,
    Compute: _compute_to_proto,
    Reduce: _reduce_to_proto,
    Scan: _scan_to_proto,
    Sort: _sort_to_proto,
    Store: _store_to_proto,
    Indirect: _indirect_to_proto,
}


def _statement(number: int, message: pb.Statement, kernel: str) -> Statement:
    where = f"{kernel}, statement {number}"
    form = message.WhichOneof("form")
    if form is None:
        raise MalformedMessageError(f"{where}: its form is not set")
    return _DECODERS[form](getattr(message, form), where)


def _load(message: pb.Load, where: str) -> Load:
    if message.HasField("mask") != message.HasField("other"):
        raise MalformedMessageError(f"{where}: one of mask and other is set; expected both or none")
    index = expr_from_proto(message.index, where)
    if not message.HasField("mask"):
        return Load(message.param, index)
    return Load(message.param, index, message.mask, message.other)


def _literal(message: pb.Literal, where: str) -> Literal:
    dtype = dtype_from_proto(message.dtype, where)
    expected = "real" if dtype.is_float else "integer"
    seen = message.WhichOneof("value")
    if seen != expected:
        raise MalformedMessageError(
            f"{where}: a literal of {dtype.value} whose {seen or 'value'} is"
            f" {'set' if seen else 'missing'}; expected {expected}"
        )
    return Literal(dtype, message.real if dtype.is_float else message.integer)


def _index_value(message: pb.IndexValue, where: str) -> IndexValue:
    dtype = dtype_from_proto(message.dtype, where)
    return IndexValue(dtype, expr_from_proto(message.expr, where))


def _compute(message: pb.Compute, where: str) -> Compute:
    dtype: DType = dtype_from_proto(message.dtype, where)
    return Compute(message.op, tuple(message.operands), dtype)


def _reduce(message: pb.Reduce, where: str) -> Reduce:
    return Reduce(message.op, message.operand, dtype_from_proto(message.dtype, where))


def _scan(message: pb.Scan, where: str) -> Scan:
    return Scan(message.op, message.operand, dtype_from_proto(message.dtype, where))


def _sort(message: pb.Sort, where: str) -> Sort:
    return Sort(message.operand, message.descending)


def _store(message: pb.Store, where: str) -> Store:
    mode = _MODES_BACK.get(message.mode)
    if mode is None:
        raise MalformedMessageError(
            f"{where}: store mode number {message.mode}; expected one of {sorted(_MODES_BACK)}"
        )
    return Store(message.param, expr_from_proto(message.index, where), message.value, mode)


def _indirect(message: pb.IndirectIndex, where: str) -> Indirect:
    return Indirect(message.symbol, message.value, expr_from_proto(message.extent, where))


_DECODERS: dict[str, Callable[[Any, str], Statement]] = {
    "load": _load,
    "literal": _literal,
    "index_value": _index_value,
    "compute": _compute,
    "reduce": _reduce,
    "scan": _scan,
    "sort": _sort,
    "store": _store,
    "indirect": _indirect,
}
