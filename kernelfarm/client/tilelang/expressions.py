"""Expressions of tile programs as text of Triton, with their element types and ranges.

Ranges of whole numbers show which accesses are inside of their tensors for sure, which conditions
are constants, and which offsets need 64 bits.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kernelfarm.client.tilelang.syntax import DTYPES, refuse
from kernelfarm.client.triton.signatures import LANGUAGE_TYPES
from kernelfarm.dtypes import DType
from kernelfarm.ir.triton.language import TL

TRITON_DTYPES: Final[Mapping[DType, str]] = {
    dtype: f"{TL}.{name}" for name, dtype in LANGUAGE_TYPES.items()
}
"""Element types as Triton writes them."""

# Of the signed types; ranges of others are not followed.
_BITS: Final[Mapping[DType, int]] = {DType.I64: 64, DType.I32: 32, DType.I16: 16, DType.I8: 8}
_MAX_DEPTH: Final = 64
_SHORT_FLOATS: Final = frozenset({DType.F16, DType.BF16})
_ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_BINARY_CALLS: Final[Mapping[str, str]] = {
    "floordiv": "//",
    "truncdiv": "//",
    "floormod": "%",
    "truncmod": "%",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
# Functions of one f32 or f64; shorter types are converted, and the result is converted back.
_FLOAT_FUNCTIONS: Final[Mapping[str, str]] = {
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "erf": "tl.erf",
    "sigmoid": "tl.sigmoid",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "exp10": "libdevice.exp10",
    "log10": "libdevice.log10",
    "log1p": "libdevice.log1p",
    "tan": "libdevice.tan",
    "tanh": "libdevice.tanh",
    "sinh": "libdevice.sinh",
    "cosh": "libdevice.cosh",
    "asin": "libdevice.asin",
    "acos": "libdevice.acos",
    "atan": "libdevice.atan",
    "trunc": "libdevice.trunc",
    "nearbyint": "libdevice.nearbyint",
    "round": "libdevice.nearbyint",
}


@dataclass(frozen=True, slots=True)
class Value:
    """An expression's text and what is known of it.

    `dtype` is None for a whole number without a type. `low` and `high` bound a whole number, both
    inclusive. `axes` are the axes of the lanes on which it depends. A literal is a number of the
    text itself.
    """

    text: str
    dtype: DType | None = DType.I32
    low: int | None = None
    high: int | None = None
    axes: frozenset[int] = frozenset()
    is_literal: bool = False
    truth: bool | None = None


ReadElement = Callable[[str, Sequence[ast.expr], ast.AST], Value]
"""Reads an element of the buffer of a name at indices, for each lane."""


def whole(number: int) -> Value:
    """A whole number without a type."""
    return Value(str(number), None, number, number, is_literal=True)


class Expressions:
    """Translates expressions; `names` are the numbers that they may name."""

    def __init__(self, names: Mapping[str, Value], read_element: ReadElement) -> None:
        self._names = names
        self._read = read_element
        self._depth = 0

    def value(self, node: ast.expr) -> Value:
        """The expression as text.

        Raises:
            TileProgramError: it uses what is not accepted.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            refuse(node, f"an expression deeper than {_MAX_DEPTH}")
        try:
            return self._value(node)
        finally:
            self._depth -= 1

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=value):
                return _constant(node, value)
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.Name(id=name):
                refuse(node, f"the name {name}")
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                indices = index.elts if isinstance(index, ast.Tuple) else [index]
                return self._read(name, indices, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="T"), attr=name), args=args):
                return self._call(node, name, args)
        return self._operation(node)

    def _operation(self, node: ast.expr) -> Value:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, _ARITHMETIC.get(type(op), ""), left, right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _negated(self.value(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._negation(operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._comparison(node, _COMPARISONS.get(type(op), ""), left, right)
            case ast.BoolOp(op=op, values=values):
                return _logical(isinstance(op, ast.And), [self.value(v) for v in values])
        refuse(node, "this expression")

    def _binary(self, node: ast.AST, sign: str, left: ast.expr, right: ast.expr) -> Value:
        if not sign:
            refuse(node, "this operator")
        return binary(node, sign, self.value(left), self.value(right))

    def _negation(self, operand: ast.expr) -> Value:
        value = self.value(operand)
        truth = None if value.truth is None else not value.truth
        return Value(f"({value.text} == 0)", DType.BOOL, axes=value.axes, truth=truth)

    def _comparison(self, node: ast.AST, sign: str, left: ast.expr, right: ast.expr) -> Value:
        if not sign:
            refuse(node, "this comparison")
        a, b = self.value(left), self.value(right)
        text = f"({a.text} {sign} {b.text})"
        return Value(text, DType.BOOL, axes=a.axes | b.axes, truth=_truth(sign, a, b))

    def _call(self, node: ast.expr, name: str, args: Sequence[ast.expr]) -> Value:
        if name == "infinity" and len(args) == 1:
            return Value('float("inf")', _named_dtype(args[0]), is_literal=True)
        if name in DTYPES and len(args) == 1:
            return _typed(self.value(args[0]), DTYPES[name])
        if name == "Cast" and len(args) == 2:
            return converted(self.value(args[1]), _named_dtype(args[0]))
        found = _called(node, name, [self.value(arg) for arg in args])
        if found is None:
            refuse(node, f"T.{name} in an expression")
        return found


def _called(node: ast.expr, name: str, values: Sequence[Value]) -> Value | None:
    """What a function of T gives for values; None if it is not accepted."""
    match name, values:
        case "if_then_else" | "Select", [condition, then, otherwise]:
            return _choice(condition, then, otherwise)
        case "max" | "min", [a, b]:
            return _extreme(name, a, b)
        case "pow", [a, b]:
            return _power(node, a, b)
        case _, [a, b] if name in _BINARY_CALLS:
            return binary(node, _BINARY_CALLS[name], a, b)
        case _, [a]:
            return _of_one(name, a)
    return None


def _of_one(name: str, a: Value) -> Value | None:
    if name in ("abs", "fabs"):
        return replace(a, text=f"tl.abs({a.text})", low=0, high=None, is_literal=False)
    if name == "bitwise_not":
        return replace(a, text=f"(~{a.text})", low=None, high=None)
    return _float_function(_FLOAT_FUNCTIONS[name], a) if name in _FLOAT_FUNCTIONS else None


def _logical(is_and: bool, values: Sequence[Value]) -> Value:
    open_ones = [value for value in values if value.truth is not is_and]
    decided = [value for value in open_ones if value.truth is (not is_and)]
    if decided or not open_ones:
        truth = is_and if not open_ones else not is_and
        return Value(str(truth), DType.BOOL, is_literal=True, truth=truth)
    text = (" & " if is_and else " | ").join(value.text for value in open_ones)
    axes = frozenset[int]().union(*(value.axes for value in open_ones))
    return Value(f"({text})", DType.BOOL, axes=axes)


def binary(node: ast.AST, sign: str, a: Value, b: Value) -> Value:
    """A binary operation; whole numbers without types take the other's type.

    Raises:
        TileProgramError: a division of a number that may be negative, whose rounding differs.
    """
    if (sign, a.text) in (("*", "1"), ("+", "0")):
        return b
    if (sign, b.text) in (("*", "1"), ("//", "1"), ("+", "0"), ("-", "0")):
        return a
    low, high = _bounds(sign, a, b)
    if sign in ("//", "%") and not ((a.low or 0) >= 0 and a.low is not None and (b.low or 0) > 0):
        refuse(node, "a division or remainder of a number that may be negative")
    is_literal = a.is_literal and b.is_literal
    if is_literal and a.dtype is None and b.dtype is None and low is not None and low == high:
        return whole(low)
    text = f"({a.text} {sign} {b.text})"
    return Value(text, _joined(a, b), low, high, a.axes | b.axes, is_literal)


def converted(value: Value, dtype: DType) -> Value:
    """The value in an element type; a literal takes it when it meets others."""
    if value.dtype is dtype or value.is_literal:
        return replace(value, dtype=dtype)
    low, high = _fitting(value.low, value.high, _BITS.get(dtype, 0))
    return Value(f"{value.text}.to({TRITON_DTYPES[dtype]})", dtype, low, high, value.axes)


def _joined(a: Value, b: Value) -> DType | None:
    """The type of a result: a literal's gives way."""
    gives_way = a.is_literal and not b.is_literal and b.dtype is not None
    return b.dtype if a.dtype is None or gives_way else a.dtype


def _constant(node: ast.AST, value: object) -> Value:
    if isinstance(value, bool):
        return Value(str(value), DType.BOOL, is_literal=True, truth=value)
    if isinstance(value, int):
        return whole(value)
    if isinstance(value, float) and math.isfinite(value):
        return Value(repr(value), DType.F32, is_literal=True)
    refuse(node, "this constant")


def _typed(value: Value, dtype: DType) -> Value:
    """`T.float32(2)` or `T.int32(n)`."""
    if not value.is_literal:
        return converted(value, dtype)
    if dtype.is_float and value.dtype is None:
        return Value(repr(float(value.text)), dtype, is_literal=True)
    return replace(value, dtype=dtype)


def _named_dtype(node: ast.expr) -> DType:
    name = node.value if isinstance(node, ast.Constant) else None
    dtype = DTYPES.get(str(name))
    if dtype is None:
        refuse(node, f"element type {name!r}")
    return dtype


def _negated(a: Value) -> Value:
    low = None if a.high is None else -a.high
    high = None if a.low is None else -a.low
    if a.is_literal and a.dtype is None and low is not None:
        return whole(low)
    return replace(a, text=f"(-{a.text})", low=low, high=high)


def _choice(condition: Value, then: Value, otherwise: Value) -> Value:
    if condition.truth is not None:
        return then if condition.truth else otherwise
    text = f"tl.where({condition.text}, {then.text}, {otherwise.text})"
    axes = condition.axes | then.axes | otherwise.axes
    low = _both(min, then.low, otherwise.low)
    high = _both(max, then.high, otherwise.high)
    return Value(text, _joined(then, otherwise), low, high, axes)


def _extreme(name: str, a: Value, b: Value) -> Value:
    chosen = max if name == "max" else min
    low, high = _both(chosen, a.low, b.low), _both(chosen, a.high, b.high)
    if a.is_literal and b.is_literal and a.dtype is b.dtype is None and low is not None:
        return whole(low)
    function = "tl.maximum" if name == "max" else "tl.minimum"
    return Value(f"{function}({a.text}, {b.text})", _joined(a, b), low, high, a.axes | b.axes)


def _power(node: ast.AST, a: Value, b: Value) -> Value:
    if a.is_literal:
        refuse(node, "the power of a constant")
    base = _long(a)
    exponent = b.text if b.is_literal else _long(b).text
    text = f"libdevice.pow({base.text}, tl.cast({exponent}, {TRITON_DTYPES[_dtype_of(base)]}))"
    return _shortened(Value(text, base.dtype, axes=a.axes | b.axes), a.dtype)


def _float_function(function: str, a: Value) -> Value:
    long = _long(a)
    text = f"{function}({long.text})"
    if a.is_literal:
        text = f"{function}(tl.cast({a.text}, tl.float32))"
    return _shortened(Value(text, long.dtype, axes=a.axes), a.dtype)


def _long(a: Value) -> Value:
    return converted(a, DType.F32) if a.dtype in _SHORT_FLOATS else a


def _shortened(value: Value, dtype: DType | None) -> Value:
    return converted(value, dtype) if dtype is not None and dtype in _SHORT_FLOATS else value


def _dtype_of(value: Value) -> DType:
    return DType.I32 if value.dtype is None else value.dtype


def _both(join: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else join(a, b)


def _bounds(sign: str, a: Value, b: Value) -> tuple[int | None, int | None]:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None, None
    if sign in ("+", "-", "*"):
        exact = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign]
        corners = [exact(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        # A number that may not fit wraps around, so nothing is known of it.
        return _fitting(min(corners), max(corners), 64 if DType.I64 in (a.dtype, b.dtype) else 32)
    if sign not in ("//", "%") or a.low < 0 or b.low <= 0:
        return None, None
    if sign == "//":
        return a.low // b.high, a.high // b.low
    return 0, min(a.high, b.high - 1)


def _fitting(low: int | None, high: int | None, bits: int) -> tuple[int | None, int | None]:
    """A range that fits signed numbers of some bits, else no bounds."""
    limit = 1 << bits >> 1
    fits = low is not None and high is not None and -limit <= low and high < limit
    return (low, high) if fits else (None, None)


def _truth(sign: str, a: Value, b: Value) -> bool | None:
    """What a comparison gives for all numbers in the ranges, None if they differ."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    flipped = {"<": ">=", ">=": "<", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}
    holds = {
        "<": a.high < b.low,
        "<=": a.high <= b.low,
        ">": a.low > b.high,
        ">=": a.low >= b.high,
        "==": a.low == a.high == b.low == b.high,
        "!=": a.high < b.low or a.low > b.high,
    }
    if holds[sign]:
        return True
    return False if holds[flipped[sign]] else None
