"""Index expressions as 64-bit integer arithmetic.

Divisions are unsigned if the numerator is proven not negative, and in 32 bits, which vectorizes, if
it is proven to fit. Otherwise they round to minus infinity.

Units:
    Positions are in elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from codegen_svc.emitters.llvm.text import I32, I64, FunctionText, Value, integer
from kernelfarm.ir.algebra.expr import Atom, Expr, FloorDiv, Max, Min, Mod, Symbol, as_expr
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.loop_ir import Indirect, Kernel

INT32_LIMIT: Final = 2**31


def bounds_of(kernel: Kernel) -> Bounds:
    """Ranges of a kernel's axes, sizes and indirect indices."""
    extents = {axis.name: axis.extent for axis in (*kernel.outer, *kernel.reduction)}
    for statement in kernel.body:
        if isinstance(statement, Indirect):
            extents[statement.symbol] = statement.extent
    bounds = Bounds.of_extents(extents)
    for size in kernel.sizes:
        bounds = bounds.with_size(size.name, size.lower, size.upper)
    return bounds


class IndexWriter:
    """Writes expressions into one function."""

    def __init__(self, fn: FunctionText, bounds: Bounds) -> None:
        self._fn = fn
        self._bounds = bounds

    def write(self, expr: Expr, symbols: Mapping[str, Value]) -> Value:
        """The value of an expression, i64; `symbols` has a value for each of its symbols."""
        fn = self._fn
        total: Value | None = None
        for monomial, coefficient in expr.terms:
            term: Value | None = None
            for atom in monomial:
                factor = self._atom(atom, symbols)
                term = factor if term is None else fn.op("mul nsw", term, factor, wish="i")
            if term is None:
                continue
            if coefficient != 1:
                term = fn.op("mul nsw", term, integer(coefficient, I64), wish="i")
            total = term if total is None else fn.op("add nsw", total, term, wish="i")
        if total is None:
            return integer(expr.constant, I64)
        if expr.constant:
            total = fn.op("add nsw", total, integer(expr.constant, I64), wish="i")
        return total

    def _atom(self, atom: Atom, symbols: Mapping[str, Value]) -> Value:
        match atom:
            case Symbol(name):
                return symbols[name]
            case FloorDiv(numerator, denominator):
                return self._divide(numerator, denominator, symbols, is_mod=False)
            case Mod(numerator, denominator):
                return self._divide(numerator, denominator, symbols, is_mod=True)
            case Min(left, right):
                return self._extremum("smin", left, right, symbols)
            case Max(left, right):
                return self._extremum("smax", left, right, symbols)

    def _extremum(self, name: str, left: Expr, right: Expr, symbols: Mapping[str, Value]) -> Value:
        a, b = self.write(left, symbols), self.write(right, symbols)
        return self._fn.intrinsic(name, a, b, wish="i")

    def _divide(
        self, top: Expr, bottom: Expr, symbols: Mapping[str, Value], *, is_mod: bool
    ) -> Value:
        fn = self._fn
        a, b = self.write(top, symbols), self.write(bottom, symbols)
        if not bottom.is_constant:
            # If a size is zero, no iteration uses the result, but the division must not trap.
            b = fn.intrinsic("smax", b, integer(1, I64), wish="i")
        if not self._bounds.is_nonnegative(top):
            return self._floor_divide(a, b, is_mod=is_mod)
        name = "urem" if is_mod else "udiv"
        if self._fits_32(top) and self._fits_32(bottom):
            a, b = self._narrow(a), self._narrow(b)
        return fn.cast("zext", fn.op(name, a, b, wish="i"), I64, wish="i")

    def _floor_divide(self, a: Value, b: Value, *, is_mod: bool) -> Value:
        fn = self._fn
        remainder = fn.op("srem", a, b, wish="i")
        is_low = fn.compare("icmp", "slt", remainder, integer(0, I64))
        if is_mod:
            return fn.select(is_low, fn.op("add", remainder, b, wish="i"), remainder, wish="i")
        quotient = fn.op("sdiv", a, b, wish="i")
        lower = fn.op("sub", quotient, integer(1, I64), wish="i")
        return fn.select(is_low, lower, quotient, wish="i")

    def _fits_32(self, expr: Expr) -> bool:
        low, high = self._bounds.interval(as_expr(expr))
        return low is not None and high is not None and low >= 0 and high < INT32_LIMIT

    def _narrow(self, value: Value) -> Value:
        if not value.text.startswith("%"):
            return integer(int(value.text), I32)
        return self._fn.cast("trunc", value, I32, wish="i")
