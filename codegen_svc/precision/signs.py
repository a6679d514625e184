"""Which signs the values of a kernel may have."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from kernelfarm.ir.loop_ir import Compute, Kernel, Literal, Statement


class Signs(enum.Flag):
    """The signs that a value other than 0 and NaN may have."""

    NONE = 0
    NEGATIVE = 1
    POSITIVE = 2
    ANY = NEGATIVE | POSITIVE

    def negated(self) -> Signs:
        """The signs of the negated value."""
        swapped = {Signs.NEGATIVE: Signs.POSITIVE, Signs.POSITIVE: Signs.NEGATIVE}
        return swapped.get(self, self)

    def times(self, other: Signs) -> Signs:
        """The signs of a product."""
        found = Signs.NONE
        for sign in (Signs.NEGATIVE, Signs.POSITIVE):
            if sign in self:
                found |= other if sign is Signs.POSITIVE else other.negated()
        return found


_NEVER_NEGATIVE = frozenset(("exp", "exp2", "sigmoid", "abs", "sqrt", "rsqrt", "erfc", "cosh"))
_KEEPS_SIGN = frozenset(("convert", "tanh", "erf", "expm1", "log1p", "sinh", "atan"))


def signs_of(kernel: Kernel) -> tuple[Signs, ...]:
    """The signs of each statement's value."""
    signs: list[Signs] = []
    for statement in kernel.body:
        signs.append(_signs(statement, signs))
    return tuple(signs)


def _signs(statement: Statement, known: Sequence[Signs]) -> Signs:
    if isinstance(statement, Literal):
        value = statement.value
        return Signs.POSITIVE if value > 0 else Signs.NEGATIVE if value < 0 else Signs.NONE
    if not isinstance(statement, Compute):
        return Signs.ANY
    if statement.op in _NEVER_NEGATIVE or _is_square(statement):
        return Signs.POSITIVE
    operands = [known[number] for number in statement.operands]
    if statement.op in _KEEPS_SIGN:
        return operands[0]
    rule = _RULES.get(statement.op)
    return rule(*operands) if rule is not None else Signs.ANY


def _is_square(compute: Compute) -> bool:
    return compute.op == "mul" and compute.operands[0] == compute.operands[1]


def _of_larger(a: Signs, b: Signs) -> Signs:
    return (a & b & Signs.NEGATIVE) | ((a | b) & Signs.POSITIVE)


_RULES: dict[str, Callable[..., Signs]] = {
    "neg": Signs.negated,
    "mul": Signs.times,
    "add": lambda a, b: a | b,
    "sub": lambda a, b: a | b.negated(),
    "where": lambda _, a, b: a | b,
    "maximum": _of_larger,
    "minimum": lambda a, b: _of_larger(a.negated(), b.negated()).negated(),
}
