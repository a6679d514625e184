"""The value of an expression under an assignment of its symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelfarm.ir.algebra.atoms import Atom, FloorDiv, Max, Min, Mod, Symbol

if TYPE_CHECKING:
    from kernelfarm.ir.algebra.expr import Expr


def evaluated(
    expr: Expr, values: Mapping[str, int], known: dict[Expr, int], *, is_estimate: bool = False
) -> int:
    """The value; `known` holds the values of expressions that occur in several others.

    For an estimate, a divisor is one where its value is zero.

    Raises:
        KeyError: a symbol has no value.
        ZeroDivisionError: a divisor is zero.
    """
    found = known.get(expr)
    if found is not None:
        return found
    total = expr.constant
    for monomial, coefficient in expr.terms:
        product = coefficient
        for atom in monomial:
            product *= _evaluated_atom(atom, values, known, is_estimate)
        total += product
    known[expr] = total
    return total


def _evaluated_atom(
    atom: Atom, values: Mapping[str, int], known: dict[Expr, int], is_estimate: bool
) -> int:
    if isinstance(atom, Symbol):
        return values[atom.name]
    a, b = (evaluated(operand, values, known, is_estimate=is_estimate) for operand in atom.operands)
    if is_estimate and not b and isinstance(atom, FloorDiv | Mod):
        b = 1
    match atom:
        case FloorDiv():
            return a // b
        case Mod():
            return a % b
        case Min():
            return min(a, b)
        case Max():
            return max(a, b)
