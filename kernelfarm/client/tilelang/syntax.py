"""The forms of syntax in the texts of tile programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NoReturn

from kernelfarm.dtypes import DType
from kernelfarm.errors import TileProgramError

DTYPES: Final[Mapping[str, DType]] = {
    "float64": DType.F64,
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float8_e4m3fn": DType.F8E4M3FN,
    "float8_e5m2": DType.F8E5M2,
    "int64": DType.I64,
    "int32": DType.I32,
    "int16": DType.I16,
    "int8": DType.I8,
    "uint64": DType.U64,
    "uint32": DType.U32,
    "uint16": DType.U16,
    "uint8": DType.U8,
    "bool": DType.BOOL,
}
"""Element types by TVM's names."""


def refuse(node: ast.AST, what: str) -> NoReturn:
    """Raises a TileProgramError that names the line."""
    line = getattr(node, "lineno", 0)
    try:
        text = ast.unparse(node).partition("\n")[0][:120]
    except RecursionError:
        text = "an expression that is nested deeply"
    raise TileProgramError(
        f"line {line}: {what} is not accepted: {text}; docs/tilelang.md lists what is"
    )


def call_of(node: ast.expr, *, allows_range: bool = False) -> tuple[str, Sequence[ast.expr]]:
    """The name of a function of `T`, and its arguments."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="T"), attr=name), args=args):
            return name, args
        case ast.Call(func=ast.Name(id="range"), args=args) if allows_range:
            return "range", args
    refuse(node, "what is no call of a function of T")


def keywords_of(node: ast.expr) -> dict[str, ast.expr]:
    """The named arguments of a call."""
    if not isinstance(node, ast.Call):
        return {}
    return {keyword.arg or "": keyword.value for keyword in node.keywords}


def entries_of(node: ast.AST, args: Sequence[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    """The entries of a dictionary with constant keys."""
    if not args or not isinstance(args[0], ast.Dict):
        refuse(node, "an attribute that is no dictionary")
    for key, value in zip(args[0].keys, args[0].values, strict=True):
        if isinstance(key, ast.Constant):
            yield str(key.value), value


def name_of(node: ast.expr) -> str:
    """The text of a name."""
    if not isinstance(node, ast.Name):
        refuse(node, "what is no name")
    return node.id


def items_of(node: ast.expr) -> tuple[ast.expr, ...]:
    """The elements of a tuple."""
    if not isinstance(node, ast.Tuple | ast.List):
        refuse(node, "what is no tuple")
    return tuple(node.elts)


def indices_of(node: ast.Subscript) -> tuple[ast.expr, ...]:
    """The indices of a subscript."""
    found = node.slice
    indices = tuple(found.elts) if isinstance(found, ast.Tuple) else (found,)
    for each in indices:
        if isinstance(each, ast.Slice):
            refuse(each, "a slice")
    return indices


def integers_of(node: ast.expr) -> list[int]:
    """A tuple of whole numbers."""
    return [integer_of(item) for item in items_of(node)]


def integer_of(node: ast.expr) -> int:
    """A whole number."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    refuse(node, "what is no whole number")


def truth_of(node: ast.expr) -> bool:
    """T.bool(True) or T.bool(False)."""
    match node:
        case ast.Call(args=[ast.Constant(value=bool(value))]) | ast.Constant(value=bool(value)):
            return value
    refuse(node, "what is neither T.bool(True) nor T.bool(False)")


def dtype_of(node: ast.AST, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr]) -> DType:
    """The element type; TVM leaves out float32."""
    stated = args[0] if args else keywords.get("dtype", ast.Constant("float32"))
    name = stated.value if isinstance(stated, ast.Constant) else None
    dtype = DTYPES.get(str(name))
    if dtype is None:
        refuse(node, f"element type {name!r}")
    return dtype
