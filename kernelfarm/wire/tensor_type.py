"""Codec of tensor types and size symbols."""

from __future__ import annotations

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import SizeSymbol, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import exprs_from_proto, exprs_to_proto
from kernelfarm.wire.names import checked_name

MAX_RANK = 64
"""The most axes of a tensor, which is PyTorch's limit."""


def tensor_type_to_proto(tensor: TensorType) -> pb.TensorType:
    """The message of a tensor type; strides are empty if they are not binding."""
    return pb.TensorType(
        dtype=dtype_to_proto(tensor.dtype),
        shape=exprs_to_proto(tensor.shape),
        strides=exprs_to_proto(tensor.strides or ()),
    )


def tensor_type_from_proto(message: pb.TensorType, where: str) -> TensorType:
    """The tensor type of a message; for a tensor with axes, empty strides are not binding.

    Raises:
        UnsupportedDTypeError: the element type is unset or unknown.
        InvalidGraphError: an extent is negative, there are more than 64 axes, or the numbers of
            strides and extents differ.
        MalformedMessageError: an extent or stride is not a valid expression.
    """
    spend(1 + len(message.shape) + len(message.strides))
    dtype = dtype_from_proto(message.dtype, where)
    if len(message.shape) > MAX_RANK:
        raise InvalidGraphError(f"{where}: {len(message.shape)} axes; expected at most {MAX_RANK}")
    shape = exprs_from_proto(message.shape, where)
    for extent in shape:
        if extent.is_constant and extent.constant < 0:
            raise InvalidGraphError(f"{where}: extent {extent}; expected 0 or more")
    strides = exprs_from_proto(message.strides, where)
    if strides and len(strides) != len(shape):
        raise InvalidGraphError(
            f"{where}: {len(strides)} strides for {len(shape)} axes; expected one for each"
        )
    return TensorType(dtype, shape, strides if strides or not shape else None)


def size_symbol_to_proto(size: SizeSymbol) -> pb.Symbol:
    """The message of a size symbol; 0 means no upper bound, and no hint."""
    return pb.Symbol(name=size.name, lower=size.lower, upper=size.upper or 0, hint=size.hint or 0)


def size_symbol_from_proto(message: pb.Symbol, where: str) -> SizeSymbol:
    """The size symbol of a message.

    Raises:
        InvalidGraphError: it has no name, or its range is empty or begins below 0.
    """
    upper = message.upper or None
    check_size_range(message.name, message.lower, upper, where)
    return SizeSymbol(message.name, message.lower, upper, message.hint or None)


def check_size_range(name: str, lower: int, upper: int | None, where: str) -> None:
    """Checks a size symbol's name and range.

    Raises:
        InvalidGraphError: it has no name, a negative lower bound, or an empty range.
        MalformedMessageError: the name is too long.
    """
    checked_name(name, f"{where}: a size symbol")
    if not name:
        raise InvalidGraphError(f"{where}: a size symbol without a name")
    if lower < 0 or (upper is not None and upper < lower):
        raise InvalidGraphError(
            f"{where}: size symbol {name} ranges from {lower} to {upper};"
            " expected 0 <= lower <= upper"
        )
