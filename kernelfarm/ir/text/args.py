"""Text of arguments and types.

Type ::= dtype [extents] | dtype [extents] @ [strides]
Arg  ::= %5 | none | true | false | 5 | -0.5 | inf | nan | "text" | f32 | {expr} | [Arg, ...]
       | complex(0.0, -1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg, Ref, TensorType
from kernelfarm.ir.text.expr import read_expr
from kernelfarm.ir.text.tokens import Cursor, quoted

_DTYPES = {dtype.value: dtype for dtype in DType}
_WORDS: dict[str, Arg] = {
    "none": None,
    "true": True,
    "false": False,
    "inf": math.inf,
    "nan": math.nan,
    **_DTYPES,
}

Item = TypeVar("Item")


def print_type(tensor: TensorType) -> str:
    """A tensor type: `f32[s0, 128]@[128, 1]`."""
    text = f"{tensor.dtype.value}[{', '.join(map(str, tensor.shape))}]"
    if tensor.strides is None:
        return text
    return f"{text}@[{', '.join(map(str, tensor.strides))}]"


def read_type(cursor: Cursor) -> TensorType:
    """Reads a tensor type."""
    dtype = read_dtype(cursor)
    shape = read_list(cursor, read_expr)
    strides = read_list(cursor, read_expr) if cursor.accept("@") else None
    return TensorType(dtype, shape, strides)


def read_dtype(cursor: Cursor) -> DType:
    """Reads an element type."""
    if cursor.next[1] not in _DTYPES:
        raise cursor.error("expected an element type")
    return _DTYPES[cursor.word()]


def read_list(cursor: Cursor, read_item: Callable[[Cursor], Item]) -> tuple[Item, ...]:
    """Reads items in brackets, separated by commas."""
    cursor.expect("[")
    items: list[Item] = []
    while not cursor.accept("]"):
        if items:
            cursor.expect(",")
        items.append(read_item(cursor))
    return tuple(items)


def print_arg(arg: Arg) -> str:
    """An argument."""
    if isinstance(arg, tuple):
        return f"[{', '.join(map(print_arg, arg))}]"
    if isinstance(arg, Expr):
        return f"{{{arg}}}"
    if isinstance(arg, Ref):
        return f"%{arg.value}"
    return _print_plain(arg)


def _print_plain(arg: bool | complex | str | DType | None) -> str:
    if arg is None:
        return "none"
    if isinstance(arg, bool):
        return "true" if arg else "false"
    if isinstance(arg, str):
        return quoted(arg)
    if isinstance(arg, complex):
        return f"complex({arg.real!r}, {arg.imag!r})"
    return arg.value if isinstance(arg, DType) else repr(arg)


def read_arg(cursor: Cursor) -> Arg:
    """Reads an argument."""
    kind, text = cursor.next
    if text == "[":
        return read_list(cursor, read_arg)
    if text == "%":
        return Ref(cursor.value())
    if cursor.accept("{"):
        expr = read_expr(cursor)
        cursor.expect("}")
        return expr
    if kind == "string":
        return cursor.string()
    if kind == "word":
        return _read_word(cursor)
    return read_number(cursor)


def _read_complex(cursor: Cursor) -> complex:
    cursor.expect("(")
    real = read_number(cursor)
    cursor.expect(",")
    imaginary = read_number(cursor)
    cursor.expect(")")
    return complex(real, imaginary)


def _read_word(cursor: Cursor) -> Arg:
    if cursor.accept("complex"):
        return _read_complex(cursor)
    if cursor.next[1] not in _WORDS:
        raise cursor.error(f"expected one of {', '.join(_WORDS)}")
    return _WORDS[cursor.word()]


def read_number(cursor: Cursor) -> int | float:
    """Reads an integer or a float, with an optional sign."""
    is_negative = cursor.accept("-")
    kind, text = cursor.take()
    number: int | float
    if kind == "int":
        number = int(text)
    elif kind == "float" or text in ("inf", "nan"):
        number = float(text)
    else:
        raise cursor.error("expected a number")
    return -number if is_negative else number
