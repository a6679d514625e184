"""Readers of arguments: they turn an argument on the wire into a parameter of a decomposition.

The annotations of a decomposition state the kinds of its parameters; each kind has one reader here.
A reader refuses a malformed argument, so that decompositions never receive one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from frontend_svc.operators.core.values import Number, Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.graph_ir import Arg, Ref

Values = Mapping[int, Tensor]
"""Id of a captured value -> its value in the Prims graph."""

Reader = Callable[[Arg, Values], Any]
"""(argument on the wire, values) -> parameter of a decomposition."""

_INT64_MAX = 2**63 - 1


def read_tensor(arg: Arg, values: Values) -> Tensor:
    """The tensor that an argument refers to.

    Raises:
        InvalidGraphError: the argument is no tensor, or its value is not defined before its use.
    """
    if not isinstance(arg, Ref):
        raise _unexpected(arg, "a tensor")
    found = values.get(arg.value)
    if found is None:
        raise InvalidGraphError(f"value {arg.value} is not a tensor defined before its use")
    return found


def _read_number(arg: Arg, values: Values) -> Number:
    if isinstance(arg, bool | int | float | Expr):
        return _plain(arg)
    raise _unexpected(arg, "a number")


def _read_operand(arg: Arg, values: Values) -> Operand:
    if isinstance(arg, Ref):
        return read_tensor(arg, values)
    if isinstance(arg, bool | int | float | Expr):
        return _plain(arg)
    raise _unexpected(arg, "a tensor or a number")


def _read_int(arg: Arg, values: Values) -> int:
    if isinstance(arg, int) and not isinstance(arg, bool):
        return _bounded(arg)
    if isinstance(arg, Expr) and arg.is_constant:
        return _bounded(arg.constant)
    raise _unexpected(arg, "an integer")


def _read_bool(arg: Arg, values: Values) -> bool:
    if isinstance(arg, bool):
        return arg
    # Old captures send flags as 0 and 1.
    if isinstance(arg, int) and arg in (0, 1):
        return bool(arg)
    raise _unexpected(arg, "true or false")


def _read_float(arg: Arg, values: Values) -> float:
    if isinstance(arg, int | float) and not isinstance(arg, bool):
        return float(arg)
    raise _unexpected(arg, "a number")


def _read_extent(arg: Arg, values: Values) -> Expr:
    if isinstance(arg, Expr):
        return arg
    if isinstance(arg, int) and not isinstance(arg, bool):
        return as_expr(_bounded(arg))
    raise _unexpected(arg, "a size")


def _read_size(arg: Arg, values: Values) -> int | Expr:
    if isinstance(arg, Expr) and not arg.is_constant:
        return arg
    return _read_int(arg, values)


def _read_dtype(arg: Arg, values: Values) -> DType:
    if isinstance(arg, DType):
        return arg
    raise _unexpected(arg, "an element type")


def _read_str(arg: Arg, values: Values) -> str:
    if isinstance(arg, str):
        return arg
    raise _unexpected(arg, "a text")


def _optional(reader: Reader) -> Reader:
    return lambda arg, values: None if arg is None else reader(arg, values)


def _each(reader: Reader, expected: str) -> Reader:
    def read(arg: Arg, values: Values) -> tuple[Any, ...]:
        if not isinstance(arg, tuple):
            raise _unexpected(arg, expected)
        return tuple(reader(item, values) for item in arg)

    return read


def _one_or_each(reader: Reader, expected: str) -> Reader:
    """PyTorch's `int[1]`: a single number means a list of one."""
    read_all = _each(reader, expected)
    return lambda arg, values: (
        read_all(arg, values) if isinstance(arg, tuple) else (reader(arg, values),)
    )


def _read_nothing(arg: Arg, values: Values) -> None:
    if arg is not None:
        raise _unexpected(arg, "nothing")


_BASE: dict[Any, Reader] = {
    Tensor: read_tensor,
    Number: _read_number,
    Operand: _read_operand,
    int: _read_int,
    bool: _read_bool,
    float: _read_float,
    Expr: _read_extent,
    DType: _read_dtype,
    str: _read_str,
    tuple[Tensor, ...]: _each(read_tensor, "a list of tensors"),
    tuple[Tensor | None, ...]: _each(_optional(read_tensor), "a list of tensors"),
    tuple[float, ...]: _each(_read_float, "a list of numbers"),
    tuple[bool, ...]: _each(_read_bool, "a list of flags"),
    tuple[int, ...]: _one_or_each(_read_int, "a list of integers"),
    tuple[Expr, ...]: _one_or_each(_read_extent, "a list of sizes"),
}

READERS: dict[Any, Reader] = {
    **_BASE,
    **{kind | None: _optional(reader) for kind, reader in _BASE.items()},
    int | Expr: _read_size,
    # Generators have no form on the wire.
    type(None): _read_nothing,
}
"""The reader of each annotation that a decomposition may use."""


def _plain(value: Number) -> Number:
    if isinstance(value, Expr) and value.is_constant:
        return value.constant
    return value


def _bounded(value: int) -> int:
    if -_INT64_MAX - 1 <= value <= _INT64_MAX:
        return value
    raise InvalidGraphError(f"{value} does not fit in 64 bits")


def _unexpected(arg: Arg, expected: str) -> InvalidGraphError:
    if arg is None:
        return InvalidGraphError(f"nothing where {expected} belongs")
    return InvalidGraphError(f"{_kind_of(arg)} where {expected} belongs")


def _kind_of(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return f"tensor %{arg.value}"
    if isinstance(arg, str):
        return f"text {arg[:40]!r}"
    if isinstance(arg, tuple):
        return f"a list of {len(arg)}"
    return f"{type(arg).__name__} {arg}"
