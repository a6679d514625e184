"""Atoms of the integer algebra, and how atoms and expressions print.

An atom is a factor of a monomial of `kernelfarm.ir.algebra.expr.Expr`; the operands of divisions,
minima and maxima are expressions again. Use that module's constructors, which keep the normal form.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kernelfarm.ir.algebra.memos import remembered

if TYPE_CHECKING:
    from kernelfarm.ir.algebra.expr import Expr

_A = TypeVar("_A", bound="_Interned")

_interned: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()
_interning = threading.Lock()  # as for expressions


class _Interned:
    """A class with one object for equal ones, so that comparing and hashing take constant time."""

    __slots__ = ("__weakref__",)
    __match_args__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type[_Interned], tuple[object, ...]]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    def __repr__(self) -> str:
        return str(self)


def _intern(kind: type[_A], *parts: object) -> _A:
    key = (kind, *parts)
    found: _A | None = _interned.get(key)
    if found is not None:
        return found
    made = object.__new__(kind)
    for name, part in zip(kind.__match_args__, parts, strict=True):
        setattr(made, name, part)
    with _interning:
        kept: _A = _interned.setdefault(key, made)
        return kept


class Symbol(_Interned):
    """A named integer: a size symbol (`s0`), a loop variable (`d0`) or an indirect index (`%7`)."""

    __slots__ = ("name",)
    __match_args__: Final = ("name",)
    name: str

    def __new__(cls, name: str) -> Symbol:
        """The unique symbol with this name."""
        return _intern(cls, name)

    def __str__(self) -> str:
        return self.name


class _Division(_Interned):
    __slots__ = ("denominator", "numerator")
    __match_args__: Final = ("numerator", "denominator")
    numerator: Expr
    denominator: Expr

    @property
    def operands(self) -> tuple[Expr, Expr]:
        """The two operands."""
        return self.numerator, self.denominator


class FloorDiv(_Division):
    """`numerator // denominator`, rounded to minus infinity."""

    __slots__ = ()

    def __new__(cls, numerator: Expr, denominator: Expr) -> FloorDiv:
        """The unique quotient of two expressions."""
        return _intern(cls, numerator, denominator)

    def __str__(self) -> str:
        return f"{_wrapped(self.numerator)}//{_wrapped(self.denominator)}"


class Mod(_Division):
    """`numerator % denominator`, with the denominator's sign."""

    __slots__ = ()

    def __new__(cls, numerator: Expr, denominator: Expr) -> Mod:
        """The unique remainder of two expressions."""
        return _intern(cls, numerator, denominator)

    def __str__(self) -> str:
        return f"{_wrapped(self.numerator)}%{_wrapped(self.denominator)}"


class _MinMax(_Interned):
    __slots__ = ("left", "right")
    __match_args__: Final = ("left", "right")
    left: Expr
    right: Expr

    @property
    def operands(self) -> tuple[Expr, Expr]:
        """The two operands."""
        return self.left, self.right


class Min(_MinMax):
    """The smaller of two expressions."""

    __slots__ = ()

    def __new__(cls, left: Expr, right: Expr) -> Min:
        """The unique minimum of two expressions."""
        return _intern(cls, left, right)

    def __str__(self) -> str:
        return f"min({self.left}, {self.right})"


class Max(_MinMax):
    """The larger of two expressions."""

    __slots__ = ()

    def __new__(cls, left: Expr, right: Expr) -> Max:
        """The unique maximum of two expressions."""
        return _intern(cls, left, right)

    def __str__(self) -> str:
        return f"max({self.left}, {self.right})"


Atom = Symbol | FloorDiv | Mod | Min | Max
Monomial = tuple[Atom, ...]


def atom_symbols(atom: Atom) -> frozenset[str]:
    """The names of all symbols in an atom."""
    match atom:
        case Symbol(name):
            return frozenset((name,))
        case FloorDiv(a, b) | Mod(a, b) | Min(a, b) | Max(a, b):
            return a.symbols | b.symbols


@remembered(1 << 16)
def monomial_key(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    """The sort key of a monomial among the terms of an expression."""
    return (len(monomial), tuple(str(atom) for atom in monomial))


def divide_monomial(atoms: Monomial, divisor: Monomial) -> Monomial | None:
    """The factors left after an exact division; None if it is not exact."""
    left = list(atoms)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def render(expr: Expr) -> str:
    """The expression as text, with terms in normal order: `5*i + (j//4) - 1`."""
    parts: list[str] = []
    for monomial, coefficient in expr.terms:
        factors = [_factor(atom) for atom in monomial]
        if abs(coefficient) != 1:
            factors.insert(0, str(abs(coefficient)))
        text = "*".join(factors)
        if not parts:
            parts.append(text if coefficient > 0 else f"-{text}")
        else:
            parts.append(f"{'+' if coefficient > 0 else '-'} {text}")
    if not parts:
        return str(expr.constant)
    if expr.constant:
        parts.append(f"{'+' if expr.constant > 0 else '-'} {abs(expr.constant)}")
    return " ".join(parts)


def _wrapped(expr: Expr) -> str:
    plain = _is_plain(expr)
    return str(expr) if plain else f"({expr})"


def _is_plain(expr: Expr) -> bool:
    """True if the expression needs no parentheses as an operand of a division."""
    if not expr.terms:
        return expr.constant >= 0
    return isinstance(lone_atom(expr), Symbol | Min | Max)


def _factor(atom: Atom) -> str:
    return f"({atom})" if isinstance(atom, FloorDiv | Mod) else str(atom)


def lone_atom(expr: Expr) -> Atom | None:
    """The atom, if the expression is one atom, else None."""
    if expr.constant or len(expr.terms) != 1:
        return None
    monomial, factor = expr.terms[0]
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


def lone_symbol(expr: Expr) -> str | None:
    """The symbol's name, if the expression is one symbol, else None."""
    atom = lone_atom(expr)
    return atom.name if isinstance(atom, Symbol) else None
