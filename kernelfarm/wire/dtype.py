"""Codec of element types."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.errors import UnsupportedDTypeError
from kernelfarm.v1 import graph_pb2 as pb

_TO_PROTO: dict[DType, pb.Dtype.ValueType] = {
    dtype: pb.Dtype.Value(f"DTYPE_{dtype.value.upper()}") for dtype in DType
}
_FROM_PROTO: dict[int, DType] = {number: dtype for dtype, number in _TO_PROTO.items()}


def dtype_to_proto(dtype: DType) -> pb.Dtype.ValueType:
    """The number of an element type in messages."""
    return _TO_PROTO[dtype]


def dtype_from_proto(number: int, where: str) -> DType:
    """The element type of a number in a message.

    Raises:
        UnsupportedDTypeError: the number is unset or unknown to this farm.
    """
    found = _FROM_PROTO.get(number)
    if found is None:
        known = ", ".join(f"{value} ({dtype.value})" for value, dtype in _FROM_PROTO.items())
        seen = "no dtype" if number == 0 else f"dtype number {number}"
        raise UnsupportedDTypeError(f"{where}: {seen}; expected one of {known}")
    return found
