"""Codec of operator arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError, MalformedMessageError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg, Ref
from kernelfarm.ir.work_budget import spend
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import expr_from_proto, expr_to_proto
from kernelfarm.wire.names import MAX_TEXT_CHARS, checked_name

MAX_LIST_DEPTH = 8
"""The deepest nesting of argument lists; operators nest at most two."""

_NONE = pb.NoneValue()
_INT64 = range(-(2**63), 2**63)


def argument_to_proto(arg: Arg) -> pb.Argument:
    """The message of an argument.

    Raises:
        InvalidGraphError: an integer has more than 64 bits, or a value is of an unknown kind.
    """
    encode = _ENCODERS.get(type(arg))
    if encode is None:
        raise InvalidGraphError(
            f"argument {arg!r} has type {type(arg).__name__}, which has no message"
        )
    return encode(arg)


def _integer(value: int) -> pb.Argument:
    if value not in _INT64:
        raise InvalidGraphError(f"integer argument {value}; expected one of 64 bits")
    return pb.Argument(integer=value)


def _list(items: tuple[Arg, ...]) -> pb.Argument:
    return pb.Argument(list=pb.ArgumentList(items=[argument_to_proto(item) for item in items]))


_ENCODERS: dict[type, Callable[[Any], pb.Argument]] = {
    type(None): lambda arg: pb.Argument(none=_NONE),
    Ref: lambda arg: pb.Argument(value=arg.value),
    bool: lambda arg: pb.Argument(boolean=arg),
    complex: lambda arg: pb.Argument(
        complex_number=pb.ComplexNumber(real=arg.real, imaginary=arg.imag)
    ),
    int: _integer,
    float: lambda arg: pb.Argument(real=arg),
    str: lambda arg: pb.Argument(text=arg),
    DType: lambda arg: pb.Argument(dtype=dtype_to_proto(arg)),
    Expr: lambda arg: pb.Argument(expr=expr_to_proto(arg)),
    tuple: _list,
}


def argument_from_proto(message: pb.Argument, where: str, depth: int = MAX_LIST_DEPTH) -> Arg:
    """The argument of a message.

    Raises:
        MalformedMessageError: its form is not set, or lists are nested too deeply.
        UnsupportedDTypeError: an element type is unknown.
    """
    spend()
    form = message.WhichOneof("form")
    if form is None:
        raise MalformedMessageError(f"{where}: an argument whose form is not set")
    if form == "list":
        if depth == 0:
            limit = f"expected at most {MAX_LIST_DEPTH} levels"
            raise MalformedMessageError(f"{where}: argument lists nested too deeply; {limit}")
        items = message.list.items
        return tuple(argument_from_proto(item, where, depth - 1) for item in items)
    return _DECODERS[form](message, where)


_DECODERS: dict[str, Callable[[pb.Argument, str], Arg]] = {
    "none": lambda message, where: None,
    "value": lambda message, where: Ref(message.value),
    "integer": lambda message, where: message.integer,
    "real": lambda message, where: message.real,
    "boolean": lambda message, where: message.boolean,
    "complex_number": lambda message, where: complex(
        message.complex_number.real, message.complex_number.imaginary
    ),
    "text": lambda message, where: checked_name(message.text, f"{where}: a text", MAX_TEXT_CHARS),
    "dtype": lambda message, where: dtype_from_proto(message.dtype, where),
    "expr": lambda message, where: expr_from_proto(message.expr, where),
}
