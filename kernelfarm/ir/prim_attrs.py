"""Attributes of prims: their normal form, and reading them in the types that they must have.

Attributes that state sizes hold expressions, attributes that state axes hold integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.graph_ir import Arg, Node
from kernelfarm.ir.scalar_types import INTEGER_RANGES

_SIZE_WORDS = "shape length starts limits steps low high sizes strides dilations"
_SIZE_ATTRS = frozenset(_SIZE_WORDS.split())


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
    """A number as a literal of an element type; as bool it is `!= 0`."""
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype is DType.BOOL else int(value)


def check_fits(node: Node, value: Arg, dtype: DType) -> None:
    """Checks that a number is a literal of an element type.

    Raises:
        VerificationError: an integer type cannot represent it.
    """
    allowed = INTEGER_RANGES.get(dtype)
    if allowed is None or dtype is DType.BOOL:
        return
    fits = isinstance(value, int | float) and math.isfinite(value) and int(value) in allowed
    if not fits:
        expected = f"an integer from {allowed.start} to {allowed.stop - 1}"
        raise rule_broken(node, f"value={value!r} of {dtype.value}", expected)


def _as_sizes(value: Arg) -> Arg:
    if isinstance(value, tuple):
        return tuple(_as_sizes(item) for item in value)
    return as_expr(value) if isinstance(value, int) else value


def rule_broken(node: Node, seen: str, expected: str) -> VerificationError:
    """The error that names a node, what was seen and what was expected."""
    return VerificationError(f"{node.op}: {seen}; expected {expected}")


def sizes_attr(node: Node, name: str) -> tuple[Expr, ...]:
    """An attribute of sizes.

    Raises:
        VerificationError: it is not a tuple of expressions.
    """
    value = node.attr(name)
    if not isinstance(value, tuple) or not all(isinstance(item, Expr) for item in value):
        raise rule_broken(node, f"{name}={value!r}", "a tuple of expressions")
    return cast(tuple[Expr, ...], value)


def dims_attr(node: Node, rank: int, name: str = "dims") -> tuple[int, ...]:
    """An attribute of distinct axes.

    Raises:
        VerificationError: it is not a tuple of axes below the rank.
    """
    value = node.attr(name)
    if not isinstance(value, tuple) or not all(type(item) is int for item in value):
        raise rule_broken(node, f"{name}={value!r}", "a tuple of integers")
    dims = cast(tuple[int, ...], value)
    if len(set(dims)) != len(dims) or not all(0 <= dim < rank for dim in dims):
        raise rule_broken(node, f"{name}={dims}", f"distinct axes from 0 to {rank - 1}")
    return dims


def dim_attr(node: Node, rank: int) -> int:
    """The attribute that names one axis.

    Raises:
        VerificationError: it is not an axis below the rank.
    """
    value = node.attr("dim")
    if type(value) is not int or not 0 <= value < rank:
        raise rule_broken(node, f"dim={value!r}", f"an axis from 0 to {rank - 1}")
    return value


def dtype_attr(node: Node) -> DType:
    """The attribute that names an element type.

    Raises:
        VerificationError: it is not an element type.
    """
    value = node.attr("dtype")
    if not isinstance(value, DType):
        raise rule_broken(node, f"dtype={value!r}", "an element type")
    return value
