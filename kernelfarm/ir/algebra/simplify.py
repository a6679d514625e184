"""Simplification of index expressions under ranges, and proofs about them.

Every rule here needs the ranges of its symbols; tests compare each with brute force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.ir.algebra.atoms import Monomial, atom_symbols, lone_atom
from kernelfarm.ir.algebra.expr import (
    Atom,
    Expr,
    FloorDiv,
    IntLike,
    Max,
    Min,
    Mod,
    Symbol,
    as_expr,
    floor_div,
    maximum,
    minimum,
    mod,
    sum_of,
)
from kernelfarm.ir.algebra.intervals import Interval, both, divide, either, multiply, remainder
from kernelfarm.ir.work_budget import spend

_MAX_ELIMINATIONS = 256
"""The most symbols that one proof replaces; a claim that is not proven by then is unknown."""


@dataclass(frozen=True, slots=True)
class Range:
    """The inclusive range of a symbol; its ends may be symbolic, None is unbounded."""

    lower: Expr
    upper: Expr | None


class Bounds:
    """Ranges of symbols, and the answers to earlier questions about them.

    Ranges can be added but not removed. Every range that was ever stated must hold, so that earlier
    answers stay true.

    Example:
        >>> from kernelfarm.ir.algebra.expr import symbol
        >>> bounds = Bounds.of_extents({"i": 8, "j": symbol("s0")}).with_size("s0", 2, None)
        >>> i, j, s0 = symbol("i"), symbol("j"), symbol("s0")
        >>> str(simplify((i * s0 + j) // s0, bounds))
        'i'
    """

    __slots__ = ("_dependencies", "_intervals", "_proofs", "_ranges", "_simplified")

    def __init__(self, ranges: Mapping[str, Range] | None = None) -> None:
        self._ranges = dict(ranges or {})
        # Answers by expression: a pass repeats few distinct questions for every node.
        self._intervals: dict[Expr, Interval] = {}
        self._proofs: dict[Expr, bool] = {}
        self._simplified: dict[Expr, Expr] = {}
        self._dependencies: dict[str, frozenset[str]] = {}

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The range of each symbol that has one."""
        return self._ranges

    def add_range(self, name: str, added: Range) -> None:
        """States that a symbol is within a range, from now on."""
        self._ranges[name] = added

    @staticmethod
    def of_extents(extents: Mapping[str, IntLike]) -> Bounds:
        """The bounds of loop variables that run from 0 to extent-1."""
        zero = as_expr(0)
        return Bounds({name: Range(zero, as_expr(size) - 1) for name, size in extents.items()})

    def with_size(self, name: str, lower: int, upper: int | None) -> Bounds:
        """These bounds with one more size symbol."""
        top = None if upper is None else as_expr(upper)
        return Bounds({**self._ranges, name: Range(as_expr(lower), top)})

    def merged(self, other: Bounds) -> Bounds:
        """The ranges of both; those of the other take precedence."""
        return Bounds({**self._ranges, **other._ranges})

    def is_nonnegative(self, expr: Expr) -> bool:
        """True if `expr >= 0` is proven for every assignment within the ranges."""
        found = self._proofs.get(expr)
        if found is None:
            found = self._prove(expr)
        return found

    def is_less(self, left: IntLike, right: IntLike) -> bool:
        """True if `left < right` is proven."""
        return self.is_nonnegative(as_expr(right) - as_expr(left) - 1)

    def is_within(self, expr: Expr, extent: IntLike) -> bool:
        """True if `0 <= expr < extent` is proven."""
        return self.is_nonnegative(expr) and self.is_less(expr, extent)

    def interval(self, expr: Expr) -> Interval:
        """Numeric bounds of an expression; sound, not always tight."""
        found = self._intervals.get(expr)
        if found is None:
            found = self._intervals[expr] = self._interval_of(expr)
        return found

    def _interval_of(self, expr: Expr) -> Interval:
        spend(1 + len(expr.terms))
        low: int | None = expr.constant
        high: int | None = expr.constant
        for monomial, coefficient in expr.terms:
            term: Interval = (coefficient, coefficient)
            for atom in monomial:
                term = multiply(term, self._atom_interval(atom))
            low = None if low is None or term[0] is None else low + term[0]
            high = None if high is None or term[1] is None else high + term[1]
        return low, high

    def _prove(self, expr: Expr) -> bool:
        """Replaces symbols, one by one, by the ends of ranges that make the expression smallest.

        If the sign of a symbol's factor is known, this loses nothing, so two orders are enough:
        loop variables first, whose ranges depend on sizes; then, if there are products, sizes
        first.
        """
        if self._descends(expr, is_size_first=False):
            return True
        return not _is_linear(expr) and self._descends(expr, is_size_first=True)

    def _descends(self, expr: Expr, *, is_size_first: bool) -> bool:
        steps = [expr]
        while len(steps) <= _MAX_ELIMINATIONS:
            verdict = self._verdict(expr)
            if verdict is not None:
                # Each step is a claim of its own, which a later proof may need.
                self._proofs.update(dict.fromkeys(steps if verdict else (), True))
                return verdict
            first, last = self._elimination_order(expr.symbols, is_size_first=is_size_first)
            smaller = self._without_all(self._without_numeric(expr, first), first)
            if smaller is expr:
                smaller = self._without_all(expr, last, is_one_enough=not _is_linear(expr))
            if smaller is expr:
                return False
            expr = smaller
            steps.append(expr)
        return False

    def _without_all(self, expr: Expr, names: list[str], *, is_one_enough: bool = False) -> Expr:
        """The expression with those of the symbols replaced, in order, that can be."""
        for name in names:
            smaller = self._without(expr, name)
            if smaller is not None:
                expr = smaller
                if is_one_enough:
                    break
        return expr

    def _without_numeric(self, expr: Expr, names: list[str]) -> Expr:
        """A linear expression with symbols replaced whose ranges have numeric ends."""
        if not _is_linear(expr):
            return expr
        removable = set(names)
        constant, kept = expr.constant, []
        for monomial, coefficient in expr.terms:
            name = next(iter(atom_symbols(monomial[0])))
            found = self._ranges.get(name) if name in removable else None
            end = None if found is None else found.lower if coefficient > 0 else found.upper
            if end is None or not end.is_constant:
                kept.append((monomial, coefficient))
            else:
                constant += coefficient * end.constant
        return Expr(constant, tuple(kept))

    def _verdict(self, expr: Expr) -> bool | None:
        """Whether `expr >= 0` holds, if numeric bounds or an earlier proof decide it, else None."""
        spend(len(expr.terms) + 1)
        low, high = self.interval(expr)
        if low is not None and low >= 0:
            return True
        return False if high is not None and high < 0 else self._proofs.get(expr)

    def _without(self, expr: Expr, name: str) -> Expr | None:
        """The expression at the end of a symbol's range that makes it smallest, None if unknown."""
        found = self._ranges.get(name)
        parts = None if found is None else expr.linear_in(name)
        if found is None or parts is None or name in _symbols_of(found):
            return None
        factor, rest = parts
        low, high = self.interval(factor)
        if low is not None and low >= 0:
            return factor * found.lower + rest
        if high is not None and high <= 0 and found.upper is not None:
            return factor * found.upper + rest
        return None

    def _elimination_order(
        self, names: frozenset[str], *, is_size_first: bool
    ) -> tuple[list[str], list[str]]:
        """Symbols on which no other's range depends, and the others; sizes first reverses them."""
        needed: set[str] = set()
        for name in names:
            needed |= self._dependencies_of(name)
        first = sorted(name for name in names if name not in needed)
        last = sorted(name for name in names if name in needed)
        return (last, first) if is_size_first else (first, last)

    def _dependencies_of(self, name: str) -> frozenset[str]:
        """The symbols on which a symbol's range depends, directly or through other symbols."""
        known = self._dependencies.get(name)
        if known is None:
            self._dependencies[name] = frozenset()  # ends a cycle of ranges
            found = self._ranges.get(name)
            below = frozenset() if found is None else _symbols_of(found)
            known = self._dependencies[name] = below.union(*map(self._dependencies_of, below))
        return known

    def _atom_interval(self, atom: Atom) -> Interval:
        match atom:
            case Symbol(name):
                return self._symbol_interval(name)
            case FloorDiv(a, b):
                return divide(self.interval(a), self.interval(b))
            case Mod(a, b):
                return remainder(self.interval(a), self.interval(b))
            case Min(a, b):
                (al, ah), (bl, bh) = self.interval(a), self.interval(b)
                return both(min, al, bl), either(min, ah, bh)
            case Max(a, b):
                (al, ah), (bl, bh) = self.interval(a), self.interval(b)
                low = either(max, al, bl)
                # The larger of x and -x is a distance.
                return either(max, low, 0) if a + b == 0 else low, both(max, ah, bh)

    def _symbol_interval(self, name: str) -> Interval:
        found = self._ranges.get(name)
        if found is None:
            return None, None
        low = self.interval(found.lower)[0]
        high = None if found.upper is None else self.interval(found.upper)[1]
        return low, high


def simplify(expr: Expr, bounds: Bounds) -> Expr:
    """An equal expression with divisions and remainders removed where the ranges allow it."""
    if all(isinstance(atom, Symbol) for monomial, _ in expr.terms for atom in monomial):
        return expr
    found = bounds._simplified.get(expr)
    if found is None:
        found = bounds._simplified[expr] = _simplify_terms(expr, bounds)
    return found


def _simplify_terms(expr: Expr, bounds: Bounds) -> Expr:
    products = [as_expr(expr.constant)]
    for monomial, coefficient in expr.terms:
        product = as_expr(coefficient)
        for atom in monomial:
            product = product * _simplify_atom(atom, bounds)
        products.append(product)
    return _join_div_mod(sum_of(products))


def _simplify_atom(atom: Atom, bounds: Bounds) -> Expr:
    match atom:
        case Symbol():
            return Expr(0, (((atom,), 1),))
        case FloorDiv(a, b):
            return _simplify_div(simplify(a, bounds), simplify(b, bounds), bounds)
        case Mod(a, b):
            return _simplify_mod(simplify(a, bounds), simplify(b, bounds), bounds)
        case Min(a, b):
            return _simplify_min(simplify(a, bounds), simplify(b, bounds), bounds)
        case Max(a, b):
            return _simplify_max(simplify(a, bounds), simplify(b, bounds), bounds)


def _simplify_min(left: Expr, right: Expr, bounds: Bounds) -> Expr:
    if bounds.is_nonnegative(right - left):
        return left
    return right if bounds.is_nonnegative(left - right) else minimum(left, right)


def _simplify_max(left: Expr, right: Expr, bounds: Bounds) -> Expr:
    if bounds.is_nonnegative(left - right):
        return left
    return right if bounds.is_nonnegative(right - left) else maximum(left, right)


def _simplify_div(numerator: Expr, denominator: Expr, bounds: Bounds) -> Expr:
    multiple, rest = _take_multiples(numerator, denominator)
    if bounds.is_within(rest, denominator):
        return multiple
    split = _common_factor(rest, denominator, bounds)
    if split is not None:
        factor, high, _ = split
        return multiple + _simplify_div(high, as_expr(denominator.constant // factor), bounds)
    return multiple + floor_div(rest, denominator)


def _simplify_mod(numerator: Expr, denominator: Expr, bounds: Bounds) -> Expr:
    _, rest = _take_multiples(numerator, denominator)
    if bounds.is_within(rest, denominator):
        return rest
    inner = lone_atom(rest)
    if isinstance(inner, Mod) and (inner.denominator % denominator) == 0:
        return _simplify_mod(inner.numerator, denominator, bounds)
    split = _common_factor(rest, denominator, bounds)
    if split is not None:
        factor, high, low = split
        return _simplify_mod(high, as_expr(denominator.constant // factor), bounds) * factor + low
    return mod(rest, denominator)


def _take_multiples(numerator: Expr, denominator: Expr) -> tuple[Expr, Expr]:
    """(q, r) with numerator = q*denominator + r."""
    rest_mod = mod(numerator, denominator)
    atom = lone_atom(rest_mod)
    if isinstance(atom, Mod) and atom.denominator is denominator:
        rest = atom.numerator
    elif rest_mod.is_constant:
        rest = rest_mod
    else:
        return as_expr(0), numerator
    quotient = floor_div(numerator - rest, denominator)
    return quotient, rest


def _common_factor(expr: Expr, denominator: Expr, bounds: Bounds) -> tuple[int, Expr, Expr] | None:
    """(g, high, low) with expr = g*high + low, g dividing the denominator, 0 <= low < g."""
    if not denominator.is_constant:
        return None
    divisors = {abs(c) for _, c in expr.terms} - {1}
    for factor in sorted(divisors, reverse=True):
        if denominator.constant % factor or factor == denominator.constant:
            continue
        high = [(m, c // factor) for m, c in expr.terms if c % factor == 0]
        low = [(m, c) for m, c in expr.terms if c % factor]
        low_part = Expr(expr.constant % factor, tuple(low))
        high_part = Expr(expr.constant // factor, tuple(high))
        if bounds.is_within(low_part, factor):
            return factor, high_part, low_part
    return None


def _join_div_mod(expr: Expr) -> Expr:
    """Rewrites `k*n*(a//n) + k*(a%n)` to `k*a`."""
    found: Expr | None = expr
    while found is not None:
        expr, found = found, _with_one_joined(found)
    return expr


def _with_one_joined(expr: Expr) -> Expr | None:
    """The expression with one remainder joined with its quotient; None if there is none."""
    terms = dict(expr.terms)
    for monomial, coefficient in expr.terms:
        for number, atom in enumerate(monomial):
            if isinstance(atom, Mod):
                others = monomial[:number] + monomial[number + 1 :]
                factor = Expr(0, ((others, coefficient),)) if others else as_expr(coefficient)
                joined = _joined(expr, terms, atom, factor)
                if joined is not None:
                    return joined
    return None


def _joined(expr: Expr, terms: dict[Monomial, int], atom: Mod, factor: Expr) -> Expr | None:
    """The expression with a remainder times a factor joined with its quotient, if it has both."""
    quotient = floor_div(atom.numerator, atom.denominator)
    if lone_atom(quotient) is None:
        return None
    whole = factor * atom.denominator * quotient
    spend(len(whole.terms))
    if any(terms.get(monomial) != coefficient for monomial, coefficient in whole.terms):
        return None
    remainder = Expr(0, (((atom,), 1),))
    return expr - factor * remainder - whole + factor * atom.numerator


def _symbols_of(found: Range) -> frozenset[str]:
    upper = found.upper.symbols if found.upper is not None else frozenset()
    return found.lower.symbols | upper


def _is_linear(expr: Expr) -> bool:
    return all(len(atoms) == 1 and isinstance(atoms[0], Symbol) for atoms, _ in expr.terms)
