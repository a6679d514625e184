"""Arithmetic on the terms of expressions, without creating expressions.

A polynomial is a constant and terms in normal form: ascending, none zero, none without an atom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kernelfarm.ir.algebra.atoms import (
    Atom,
    Monomial,
    Symbol,
    atom_symbols,
    divide_monomial,
    monomial_key,
)
from kernelfarm.ir.algebra.size_limit import MAX_TERMS, too_large
from kernelfarm.ir.work_budget import spend

if TYPE_CHECKING:
    from kernelfarm.ir.algebra.expr import Expr

Terms = tuple[tuple[Monomial, int], ...]
Parts = tuple[int, Terms]
"""A polynomial: its constant and its terms."""


def normal(constant: int, terms: Mapping[Monomial, int]) -> Parts:
    """The normal form of any terms; a term without atoms is added to the constant."""
    kept = [(monomial, value) for monomial, value in terms.items() if value and monomial]
    kept.sort(key=lambda item: monomial_key(item[0]))
    return constant + terms.get((), 0), tuple(kept)


def added(left: Expr, right: Expr, sign: int) -> Parts:
    """`left + sign * right`."""
    spend(len(left.terms) + len(right.terms))
    terms = dict(left.terms)
    for monomial, coefficient in right.terms:
        terms[monomial] = terms.get(monomial, 0) + sign * coefficient
    constant = left.constant + sign * right.constant
    if len(terms) == len(left.terms):  # they are still in order
        return constant, tuple(item for item in terms.items() if item[1])
    return normal(constant, terms)


def total(addends: Iterable[Expr]) -> Parts:
    """The sum of all addends."""
    constant = 0
    terms: dict[Monomial, int] = {}
    for addend in addends:
        spend(1 + len(addend.terms))
        constant += addend.constant
        for monomial, coefficient in addend.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
    return normal(constant, terms)


def multiplied(left: Expr, right: Expr) -> Parts:
    """`left * right`.

    Raises:
        InvalidGraphError: it is larger than any index of a real program.
        WorkBudgetError: the request's budget is spent.
    """
    _check_product(left, right)
    terms: dict[Monomial, int] = {}
    for a, x in (*left.terms, ((), left.constant)):
        for b, y in (*right.terms, ((), right.constant)):
            if x * y:
                monomial = tuple(sorted(a + b, key=str)) if a and b else a or b
                terms[monomial] = terms.get(monomial, 0) + x * y
    return normal(0, terms)


def scaled(expr: Expr, factor: int) -> Parts:
    """`expr * factor` for a factor that is not 0."""
    spend(len(expr.terms))
    terms = tuple((monomial, value * factor) for monomial, value in expr.terms)
    return expr.constant * factor, terms


def split_multiples(numerator: Expr, denominator: Expr) -> tuple[Parts, Parts] | None:
    """(q, r) with numerator = q*denominator + r; q has every term that divides exactly.

    None if the denominator has several terms.
    """
    divisor = _single_term(denominator)
    if divisor is None:
        return None
    spend(len(numerator.terms))
    monomial, coefficient = divisor
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for atoms, value in (*numerator.terms, ((), numerator.constant)):
        left = divide_monomial(atoms, monomial)
        if left is None or value % coefficient:
            rest[atoms] = value
        else:
            quotient[left] = value // coefficient
    return normal(0, quotient), normal(0, rest)


def linear_parts(expr: Expr, name: str) -> tuple[Parts, Parts] | None:
    """(P, Q) of `expr = P*name + Q`; None if the expression is not linear in `name`."""
    spend(len(expr.terms))
    factor: dict[Monomial, int] = {}
    rest: list[tuple[Monomial, int]] = []
    target = Symbol(name)
    for monomial, coefficient in expr.terms:
        if target not in monomial:
            others = monomial
            rest.append((monomial, coefficient))
        else:
            position = monomial.index(target)
            others = monomial[:position] + monomial[position + 1 :]
            factor[others] = coefficient
        if any(_holds(atom, name) for atom in others):
            return None
    return normal(0, factor), (expr.constant, tuple(rest))


def _holds(atom: Atom, name: str) -> bool:
    return atom.name == name if isinstance(atom, Symbol) else name in atom_symbols(atom)


def _check_product(left: Expr, right: Expr) -> None:
    """Checks the size first, because a product of sums grows exponentially with its factors."""
    terms = (len(left.terms) + 1) * (len(right.terms) + 1)
    if terms > MAX_TERMS:
        raise too_large(f"a product of {terms} terms; expected at most {MAX_TERMS}")
    # Every term of one is combined with every term of the other.
    spend(left.parts * (len(right.terms) + 1) + right.parts * (len(left.terms) + 1))


def _single_term(expr: Expr) -> tuple[Monomial, int] | None:
    if expr.is_constant:
        return ((), expr.constant) if expr.constant else None
    if expr.constant == 0 and len(expr.terms) == 1:
        return expr.terms[0]
    return None
