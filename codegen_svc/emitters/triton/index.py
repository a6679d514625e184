"""Index expressions as Triton text, over flat block indices.

The axes of a kernel are recovered from `xindex` (all outer axes, row-major) and `rindex` (all
reduction axes). If an expression is a polynomial in the flat index itself, it is written as one:
`4096 + xindex` is clearer than divisions, to a reader and to Triton's alignment analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.atoms import lone_atom
from kernelfarm.ir.algebra.expr import (
    ONE,
    ZERO,
    Atom,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    product_of,
    symbol,
)
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.loop_ir import Axis, Indirect, Kernel

X_FLAT, R_FLAT = "xindex", "rindex"


@dataclass(frozen=True, slots=True)
class AxisRecovery:
    """An axis as an expression of its flat index: `flat // inner % extent`.

    `nested` is the same number, divided by one extent after the other: quotients and remainders of
    varying extents join to the flat index only in this form.
    """

    name: str
    flat: str
    expr: Expr
    nested: Expr


@dataclass(frozen=True)
class IndexWriter:
    """Writes expressions; `renamed` gives the text of indirect symbols.

    `flats` are the names of the flat indices of the outer axes and of the reduction axes.
    """

    bounds: Bounds
    recoveries: tuple[AxisRecovery, ...]
    renamed: Mapping[str, str]
    flats: tuple[str, str] = (X_FLAT, R_FLAT)
    _cache: dict[Expr, Expr] = field(default_factory=dict)

    def reduced(self, expr: Expr) -> Expr:
        """The expression in flat indices if that is a polynomial, else in axes."""
        if expr not in self._cache:
            self._cache[expr] = self._reduce(expr)
        return self._cache[expr]

    def text(self, expr: Expr) -> str:
        """The expression as Triton text; reads `xindex`, `rindex`, axis and size names."""
        return self._render(self.reduced(expr))

    def raw_text(self, expr: Expr) -> str:
        """The expression as Triton text, without flattening."""
        return self._render(expr)

    def _reduce(self, expr: Expr) -> Expr:
        for flat in self.flats:
            axes = {r.name: r.nested for r in self.recoveries if r.flat == flat}
            if expr.symbols.isdisjoint(axes):
                continue
            flattened = simplify(expr.substitute(axes), self.bounds)
            if _division_count(flattened) <= _division_count(expr):
                expr = flattened
        return expr

    def _render(self, expr: Expr) -> str:
        parts: list[str] = []
        for monomial, coefficient in expr.terms:
            factors = [self._atom(atom) for atom in monomial]
            if abs(coefficient) != 1:
                factors.insert(0, str(abs(coefficient)))
            text = " * ".join(factors)
            if parts:
                parts.append(f"{'+' if coefficient > 0 else '-'} {text}")
            else:
                parts.append(text if coefficient > 0 else f"-{text}")
        if not parts:
            return str(expr.constant)
        if expr.constant:
            parts.append(f"{'+' if expr.constant > 0 else '-'} {abs(expr.constant)}")
        return " ".join(parts)

    def _atom(self, atom: Atom) -> str:
        match atom:
            case Symbol(name):
                return self._symbol(name)
            case FloorDiv(a, b):
                return self._division("//", "kf_floor_div", a, b)
            case Mod(a, b):
                return self._division("%", "kf_floor_mod", a, b)
            case Min(a, b):
                return f"tl.minimum({self._render(a)}, {self._render(b)})"
            case Max(a, b):
                return f"tl.maximum({self._render(a)}, {self._render(b)})"

    def _symbol(self, name: str) -> str:
        """A symbol's name in the text, which Python compiles: only declared names may occur."""
        if name not in self.bounds.ranges:
            raise KernelRejectedError(
                f"an index uses {name!r}; expected an axis, a size or an index"
            )
        return self.renamed.get(name, name)

    def _division(self, operator: str, helper: str, a: Expr, b: Expr) -> str:
        """A division rounded to minus infinity; Triton's own rounds to zero, as C does."""
        left, right = self._render(a), self._render(b)
        if not self._is_nonnegative(a):
            return f"{helper}({left}, {right})"
        left = left if _is_plain(a) else f"({left})"
        right = right if _is_plain(b) else f"({right})"
        return f"({left} {operator} {right})"

    def _is_nonnegative(self, expr: Expr) -> bool:
        """True if a number is proven to be none below zero; divisors are always positive."""
        match lone_atom(expr):
            case Mod():
                return True
            case FloorDiv(a, _):
                return self._is_nonnegative(a)
            case _:
                return self.bounds.is_nonnegative(expr)


def index_writer(
    kernel: Kernel, renamed: Mapping[str, str], flats: tuple[str, str] = (X_FLAT, R_FLAT)
) -> IndexWriter:
    """The writer for a kernel; `renamed` maps indirect symbols to names in the text."""
    outer, reduction = (
        _recoveries(axes, flat)
        for axes, flat in zip((kernel.outer, kernel.reduction), flats, strict=True)
    )
    return IndexWriter(kernel_bounds(kernel, flats), (*outer, *reduction), renamed, flats)


def kernel_bounds(kernel: Kernel, flats: tuple[str, str] = (X_FLAT, R_FLAT)) -> Bounds:
    """Ranges of every symbol of a kernel: axes, flat indices, sizes, indirect indices."""
    extents = {axis.name: axis.extent for axis in (*kernel.outer, *kernel.reduction)}
    extents |= dict(zip(flats, (numel(kernel.outer), numel(kernel.reduction)), strict=True))
    bounds = Bounds.of_extents(extents)
    for size in kernel.sizes:
        bounds = bounds.with_size(size.name, size.lower, size.upper)
    indirect = {s.symbol: Range(ZERO, s.extent - 1) for s in kernel.body if isinstance(s, Indirect)}
    return bounds.merged(Bounds(indirect))


def numel(axes: tuple[Axis, ...]) -> Expr:
    """Number of points of a nest; 1 without axes."""
    return product_of([axis.extent for axis in axes])


def _recoveries(axes: tuple[Axis, ...], flat: str) -> list[AxisRecovery]:
    found = []
    inner, rest = ONE, symbol(flat)
    for position, axis in reversed(list(enumerate(axes))):
        expr, nested = symbol(flat) // inner, rest
        if position:
            expr, nested = expr % axis.extent, rest % axis.extent
        found.append(AxisRecovery(axis.name, flat, expr, nested))
        inner, rest = inner * axis.extent, rest // axis.extent
    return list(reversed(found))


def _division_count(expr: Expr) -> int:
    atoms = [atom for monomial, _ in expr.terms for atom in monomial]
    return sum(_atom_divisions(atom) for atom in atoms)


def _atom_divisions(atom: Atom) -> int:
    match atom:
        case Symbol():
            return 0
        case FloorDiv(a, b) | Mod(a, b) | Min(a, b) | Max(a, b):
            return 1 + _division_count(a) + _division_count(b)


def _is_plain(expr: Expr) -> bool:
    if expr.is_constant:
        return expr.constant >= 0
    return (
        not expr.constant
        and len(expr.terms) == 1
        and expr.terms[0][1] == 1
        and len(expr.terms[0][0]) == 1
    )
