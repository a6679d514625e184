"""Converts the symbolic sizes of a trace: torch's SymPy expressions -> `kernelfarm.ir.algebra`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, floor_div, maximum, minimum, mod
from kernelfarm.ir.algebra.expr import symbol as symbol_expr
from kernelfarm.ir.graph_ir import SizeSymbol

if TYPE_CHECKING:
    from kernelfarm.client.pytorch.private import ShapeEnv

_LARGEST_SIZE = 1 << 62
"""Torch states larger upper limits for unbounded sizes."""


class SizeReader:
    """Reads SymInts of one trace and collects their symbols with their ranges."""

    def __init__(self) -> None:
        self._shape_env: ShapeEnv | None = None
        self._read: dict[Any, Expr] = {}
        self._symbols: dict[str, Any] = {}

    def read(self, size: int | torch.SymInt) -> Expr:
        """The size as an expression.

        Raises:
            InvalidGraphError: it depends on data, or uses an operation that the algebra lacks.
        """
        if not isinstance(size, torch.SymInt):
            return as_expr(int(size))
        node = size.node
        expr = node.expr
        found = self._read.get(expr)
        if found is None:
            self._shape_env = node.shape_env
            found = self._read[expr] = self._convert(expr)
        return found

    def read_all(self, sizes: Iterable[int | torch.SymInt]) -> tuple[Expr, ...]:
        """Several sizes, in order."""
        return tuple(self.read(size) for size in sizes)

    def symbols(self) -> tuple[SizeSymbol, ...]:
        """Every symbol that was read, with its range, sorted by name."""
        return tuple(self._size_symbol(name) for name in sorted(self._symbols))

    def _size_symbol(self, name: str) -> SizeSymbol:
        env, symbol = self._shape_env, self._symbols[name]
        if env is None:  # not reached: every SymInt has an environment
            return SizeSymbol(name, 0, None)
        limits = env.var_to_range[symbol]
        lower, upper = _finite(limits.lower), _finite(limits.upper)
        return SizeSymbol(name, max(lower or 0, 0), upper, _hint(env, symbol))

    def _convert(self, expr: Any) -> Expr:
        if expr.is_Integer:
            return as_expr(int(expr))
        if expr.is_Symbol:
            return self._symbol(expr)
        kind = type(expr).__name__
        combine = _COMBINE.get(kind)
        if combine is None:
            raise InvalidGraphError(
                f"size {expr} uses {kind}; expected sums, products, floor divisions, remainders, "
                "minima and maxima of sizes"
            )
        return combine([self._convert(part) for part in expr.args])

    def _symbol(self, symbol: Any) -> Expr:
        name = str(symbol)
        if depends_on_data(symbol):
            raise InvalidGraphError(f"size {name} depends on data; expected sizes of inputs")
        self._symbols[name] = symbol
        return symbol_expr(name)


def traced_size(size: int | torch.SymInt) -> int | None:
    """The size that a trace was made with, if it is known. To ask adds no guard.

    A key must not depend on it: other calls of the same graph have other sizes.
    """
    reader = SizeReader()
    try:
        found = reader.read(size)
    except InvalidGraphError:
        return None
    hints = {symbol.name: symbol.hint for symbol in reader.symbols()}
    known = {name: hint for name, hint in hints.items() if hint is not None}
    return found.evaluate(known) if len(known) == len(hints) else None


def depends_on_data(symbol: Any) -> bool:
    """True for a symbol that torch made for a value: its names start with `u`, `zuf` or `zf`."""
    return str(symbol).startswith(("u", "zuf", "zf"))


def _finite(limit: Any) -> int | None:
    # torch's unbounded limit is a special SymPy object, not an Integer.
    if not isinstance(limit, int) and not getattr(limit, "is_Integer", False):
        return None
    value = int(limit)
    return value if abs(value) < _LARGEST_SIZE else None


def _hint(env: ShapeEnv, symbol: Any) -> int | None:
    # torch 2.12 renamed `var_to_val`.
    values = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
    value = values.get(symbol)
    return None if value is None else int(value)


def _sum(parts: list[Expr]) -> Expr:
    total = ZERO
    for part in parts:
        total = total + part
    return total


def _product(parts: list[Expr]) -> Expr:
    total = ONE
    for part in parts:
        total = total * part
    return total


def _power(parts: list[Expr]) -> Expr:
    base, exponent = parts
    if not exponent.is_constant or not 0 <= exponent.as_int() <= 8:
        raise InvalidGraphError(f"size ({base})**({exponent}): expected an exponent of 0 to 8")
    return _product([base] * exponent.as_int())


def _fold(combine: Callable[[Expr, Expr], Expr]) -> Callable[[list[Expr]], Expr]:
    def folded(parts: list[Expr]) -> Expr:
        result = parts[0]
        for part in parts[1:]:
            result = combine(result, part)
        return result

    return folded


def _modular_indexing(parts: list[Expr]) -> Expr:
    base, divisor, modulus = parts
    return mod(floor_div(base, divisor), modulus)


_COMBINE: dict[str, Callable[[list[Expr]], Expr]] = {
    "Add": _sum,
    "Mul": _product,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _fold(floor_div),
    "CleanDiv": _fold(floor_div),
    "Mod": _fold(mod),
    "PythonMod": _fold(mod),
    "ModularIndexing": _modular_indexing,
    "Min": _fold(minimum),
    "Max": _fold(maximum),
}
"""Builds the expression for torch's size operations, by the name of their SymPy class."""
