"""Integer algebra of shapes and indices.

Grammar (a normal form: equal polynomials are one object, so `is` and `==` agree):

    Expr   ::= constant + sum of coefficient * monomial
    Monomial ::= product of Atom
    Atom   ::= Symbol(name) | FloorDiv(Expr, Expr) | Mod(Expr, Expr)
             | Min(Expr, Expr) | Max(Expr, Expr)

Division rounds to minus infinity, and divisors are positive whenever an expression is evaluated.
Constructors apply only rules that hold for all integers; rules that need ranges are in `simplify`.
The size of an expression is limited, because the cost of every operation grows with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Union

from kernelfarm.ir.algebra.atoms import (
    Atom,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    atom_symbols,
    lone_atom,
    render,
)
from kernelfarm.ir.algebra.evaluation import evaluated
from kernelfarm.ir.algebra.memos import count_new_terms, remembered
from kernelfarm.ir.algebra.polynomials import (
    Terms,
    added,
    linear_parts,
    multiplied,
    scaled,
    split_multiples,
    total,
)
from kernelfarm.ir.algebra.size_limit import measured
from kernelfarm.ir.work_budget import spend

# fmt: off
__all__ = [
    "ONE", "ZERO", "Atom", "Expr", "FloorDiv", "IntLike", "Max", "Min", "Mod", "Symbol",
    "as_expr", "ceil_div", "floor_div", "maximum", "minimum", "mod", "product_of", "sum_of",
    "symbol",
]
# fmt: on

IntLike = Union["Expr", int]

_interned: weakref.WeakValueDictionary[tuple[int, Terms], Expr] = weakref.WeakValueDictionary()
# Services build expressions in threads, and `setdefault` is not atomic: two objects for equal
# expressions would never compare equal.
_interning = threading.Lock()


class Expr:
    """A hash-consed integer expression in polynomial normal form.

    Example:
        >>> i, j = symbol("i"), symbol("j")
        >>> str((i * 4 + j + i) // 1)
        '5*i + j'
        >>> (i + j) is (j + i)
        True
    """

    __slots__ = (
        "__weakref__", "_symbols", "_text", "constant", "nesting", "parts", "terms"
    )  # fmt: skip
    constant: int
    terms: Terms
    parts: int
    nesting: int
    _text: str | None
    _symbols: frozenset[str] | None

    def __new__(cls, constant: int, terms: Terms) -> Expr:
        """The unique expression with these parts; `terms` must be in normal form.

        Raises:
            InvalidGraphError: it is larger than any index of a real program.
            WorkBudgetError: the request's budget is spent.
        """
        key = (constant, terms)
        found = _interned.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.constant = constant
        self.terms = terms
        self.parts, self.nesting = measured(constant, terms)
        count_new_terms(len(terms) + 1)
        self._text = None
        self._symbols = None
        with _interning:
            return _interned.setdefault(key, self)

    __hash__ = object.__hash__  # equal expressions are one object

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return not self.terms and self.constant == other
        return self is other

    def __add__(self, other: IntLike) -> Expr:
        return _sum(self, as_expr(other), 1)

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Expr:
        return _sum(self, as_expr(other), -1)

    def __rsub__(self, other: IntLike) -> Expr:
        return _sum(as_expr(other), self, -1)

    def __neg__(self) -> Expr:
        return _sum(ZERO, self, -1)

    def __mul__(self, other: IntLike) -> Expr:
        return _product(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Expr:
        return floor_div(self, as_expr(other))

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return floor_div(as_expr(other), self)

    def __mod__(self, other: IntLike) -> Expr:
        return mod(self, as_expr(other))

    def __rmod__(self, other: IntLike) -> Expr:
        return mod(as_expr(other), self)

    def __str__(self) -> str:
        if self._text is None:
            self._text = render(self)
        return self._text

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[Expr], tuple[int, Terms]]:
        return (Expr, (self.constant, self.terms))

    @property
    def is_constant(self) -> bool:
        """True if the expression has no symbols."""
        return not self.terms

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols."""
        if self._symbols is None:
            names: set[str] = set()
            for monomial, _ in self.terms:
                for atom in monomial:
                    names |= atom_symbols(atom)
            self._symbols = frozenset(names)
        return self._symbols

    def as_int(self) -> int:
        """The value of a constant expression.

        Raises:
            ValueError: the expression has symbols.
        """
        if self.terms:
            raise ValueError(f"expected a constant, got {self}")
        return self.constant

    def substitute(self, values: Mapping[str, IntLike]) -> Expr:
        """The expression with symbols replaced; the same object if none of them occurs."""
        return _substituted(self, values, {})

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value under an assignment of all symbols.

        Raises:
            KeyError: a symbol has no value.
            ZeroDivisionError: a divisor is zero.
        """
        return evaluated(self, values, {})

    def estimate(self, values: Mapping[str, int]) -> int:
        """The value for sizes that are assumed one by one, and that need not fit each other.

        A size of `s0 // (s1 * s2)` pages is zero if all three are 509. Dividing by it is dividing
        by one.

        Raises:
            KeyError: a symbol has no value.
        """
        return evaluated(self, values, {}, is_estimate=True)

    def coefficient_of(self, name: str) -> Expr | None:
        """P of `self = P*name + Q`, P and Q without `name`; None if it is not linear in `name`."""
        parts = self.linear_in(name)
        return None if parts is None else parts[0]

    def linear_in(self, name: str) -> tuple[Expr, Expr] | None:
        """(P, Q) of `self = P*name + Q`; None if it is not linear in `name`."""
        if name not in self.symbols:
            return ZERO, self
        parts = linear_parts(self, name)
        return None if parts is None else (Expr(*parts[0]), Expr(*parts[1]))


def as_expr(value: IntLike) -> Expr:
    """The expression of an integer; an expression itself."""
    return value if isinstance(value, Expr) else _literal(value)


@remembered(4096)
def _literal(value: int) -> Expr:
    return Expr(int(value), ())


@remembered(4096)
def symbol(name: str) -> Expr:
    """The expression that is one symbol."""
    return Expr(0, (((Symbol(name),), 1),))


@remembered(1 << 16)
def floor_div(numerator: Expr, denominator: Expr) -> Expr:
    """`numerator // denominator`, with exact multiples divided."""
    if denominator == 1:
        return numerator
    if numerator.is_constant and denominator.is_constant and denominator.constant != 0:
        return as_expr(numerator.constant // denominator.constant)
    quotient, rest = _split_multiples(numerator, denominator)
    if rest is ZERO:
        return quotient
    if rest.is_constant and denominator.is_constant and denominator.constant != 0:
        return quotient + rest.constant // denominator.constant
    inner = lone_atom(rest)
    if (
        isinstance(inner, FloorDiv)
        and _is_positive(denominator)
        and _is_positive(inner.denominator)
    ):
        return quotient + floor_div(inner.numerator, inner.denominator * denominator)
    return quotient + _from_atom(FloorDiv(rest, denominator))


@remembered(1 << 16)
def mod(numerator: Expr, denominator: Expr) -> Expr:
    """`numerator % denominator`, with exact multiples removed."""
    if denominator == 1:
        return ZERO
    if numerator.is_constant and denominator.is_constant and denominator.constant != 0:
        return as_expr(numerator.constant % denominator.constant)
    _, rest = _split_multiples(numerator, denominator)
    if rest is ZERO:
        return ZERO
    if rest.is_constant and denominator.is_constant and denominator.constant != 0:
        return as_expr(rest.constant % denominator.constant)
    return _from_atom(Mod(rest, denominator))


def minimum(left: IntLike, right: IntLike) -> Expr:
    """The smaller of two expressions."""
    a, b = sorted((as_expr(left), as_expr(right)), key=str)
    difference = a - b
    if difference.is_constant:
        return a if difference.constant <= 0 else b
    return _from_atom(Min(a, b))


def maximum(left: IntLike, right: IntLike) -> Expr:
    """The larger of two expressions."""
    a, b = sorted((as_expr(left), as_expr(right)), key=str)
    difference = a - b
    if difference.is_constant:
        return a if difference.constant >= 0 else b
    return _from_atom(Max(a, b))


def sum_of(addends: Iterable[Expr]) -> Expr:
    """The sum of all addends, in time linear in the number of their terms.

    Raises:
        InvalidGraphError: it is larger than any index of a real program.
        WorkBudgetError: the request's budget is spent.
    """
    return Expr(*total(addends))


def product_of(factors: tuple[Expr, ...] | list[Expr]) -> Expr:
    """The product of all factors; 1 for none."""
    result = ONE
    for factor in factors:
        result = result * factor
    return result


def ceil_div(numerator: IntLike, denominator: IntLike) -> Expr:
    """`numerator / denominator` rounded up, for a positive denominator."""
    bottom = as_expr(denominator)
    return (as_expr(numerator) + bottom - 1) // bottom


ZERO = Expr(0, ())
ONE = Expr(1, ())


def _from_atom(atom: Atom) -> Expr:
    return Expr(0, (((atom,), 1),))


@remembered(1 << 16)
def _sum(left: Expr, right: Expr, sign: int) -> Expr:
    if not right.terms:
        return Expr(left.constant + sign * right.constant, left.terms)
    return Expr(*added(left, right, sign))


@remembered(1 << 16)
def _product(left: Expr, right: Expr) -> Expr:
    if right is ONE:
        return left
    if left is ONE:
        return right
    if not right.terms:
        return _scaled(left, right.constant)
    if not left.terms:
        return _scaled(right, left.constant)
    return Expr(*multiplied(left, right))


def _scaled(expr: Expr, factor: int) -> Expr:
    return Expr(*scaled(expr, factor)) if factor else ZERO


def _split_multiples(numerator: Expr, denominator: Expr) -> tuple[Expr, Expr]:
    split = split_multiples(numerator, denominator)
    return (ZERO, numerator) if split is None else (Expr(*split[0]), Expr(*split[1]))


def _is_positive(expr: Expr) -> bool:
    return expr.is_constant and expr.constant > 0


def _substituted(expr: Expr, values: Mapping[str, IntLike], known: dict[Expr, Expr]) -> Expr:
    """`known` holds earlier results, because an expression often occurs in several others."""
    if expr.symbols.isdisjoint(values):
        return expr
    found = known.get(expr)
    if found is not None:
        return found
    spend(len(expr.terms))
    products = [as_expr(expr.constant)]
    for monomial, coefficient in expr.terms:
        product = as_expr(coefficient)
        for atom in monomial:
            product = product * _substituted_atom(atom, values, known)
        products.append(product)
    result = known[expr] = sum_of(products)
    return result


def _substituted_atom(atom: Atom, values: Mapping[str, IntLike], known: dict[Expr, Expr]) -> Expr:
    if isinstance(atom, Symbol):
        name = atom.name
        return as_expr(values[name]) if name in values else _from_atom(atom)
    a, b = (_substituted(operand, values, known) for operand in atom.operands)
    match atom:
        case FloorDiv():
            return floor_div(a, b)
        case Mod():
            return mod(a, b)
        case Min():
            return minimum(a, b)
        case Max():
            return maximum(a, b)
