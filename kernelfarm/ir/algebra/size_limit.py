"""Limits on the size of an expression, because the cost of every operation grows with it.

Expressions share their parts, so a few objects may represent a text of gigabytes. The size is
therefore that of the expression written out.
"""

from __future__ import annotations

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.atoms import Monomial, Symbol
from kernelfarm.ir.work_budget import spend

MAX_TERMS = 1 << 13
"""The most terms of a polynomial, before equal ones are joined; real indices have below 100."""

MAX_PARTS = 1 << 15
"""The most terms and atoms, with those of nested expressions, each as often as it is written."""

MAX_NESTING = 64
"""The most divisions, minima and maxima within each other."""

MAX_BITS = 1 << 13
"""The most bits of a number; the number of elements of 64 axes of 64 bits has half of them."""


def measured(constant: int, terms: tuple[tuple[Monomial, int], ...]) -> tuple[int, int]:
    """(parts, nesting) of a new expression.

    Raises:
        InvalidGraphError: it is larger than the index of any real program.
        WorkBudgetError: the request's budget is spent.
    """
    parts, nesting, bits, atoms = 1 + len(terms), 0, constant.bit_length(), 0
    for monomial, coefficient in terms:
        bits = max(bits, coefficient.bit_length())
        atoms += len(monomial)
        for atom in monomial:
            if not isinstance(atom, Symbol):
                a, b = atom.operands
                parts += a.parts + b.parts
                nesting = max(nesting, a.nesting + 1, b.nesting + 1)
    spend(1 + len(terms) + atoms)
    parts += atoms
    if parts > MAX_PARTS or nesting > MAX_NESTING or bits > MAX_BITS:
        raise too_large(
            f"{parts} parts, {nesting} nested divisions and numbers of {bits} bits; expected at"
            f" most {MAX_PARTS}, {MAX_NESTING} and {MAX_BITS}"
        )
    return parts, nesting


def too_large(seen: str) -> InvalidGraphError:
    """The error for an expression that is too large."""
    return InvalidGraphError(
        f"a size or index became an expression with {seen}. Use fewer symbolic sizes in one"
        " expression, or fewer views of views"
    )
