"""Guards of cache entries: a closed grammar of conditions on a caller's facts.

    guard   = conjunction of atoms; the empty one always holds
    atom    = subject op operand
    subject = symbol NAME | input N size AXIS | input N stride AXIS | input N alignment
            | input N dtype | environment NAME | param_address N | param_extent N
    op      = == != < <= > >= | divisible by

Numbers are compared with numbers, dtypes as words, facts of the environment as words (== and !=) or
as versions. An atom about a fact that the caller does not state does not hold. Only a launch knows
parameters; its guards choose among the variants of a kernel (`kernelfarm.ir.artifact`).
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from kernelfarm.ir.artifact import GuardOp

_VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,7}")


class FactSubject(enum.Enum):
    """The fact that an atom compares."""

    SYMBOL = "symbol"
    PARAM_ADDRESS = "param_address"
    PARAM_EXTENT = "param_extent"
    INPUT_SIZE = "input_size"
    INPUT_STRIDE = "input_stride"
    INPUT_ALIGNMENT = "input_alignment"
    INPUT_DTYPE = "input_dtype"
    ENVIRONMENT = "environment"


TEXT_SUBJECTS = frozenset({FactSubject.INPUT_DTYPE, FactSubject.ENVIRONMENT})

Where = Union[str, int, tuple[int, int]]
"""A fact within a subject: a symbol or fact by name, an input by number, or input and axis."""


@dataclass(frozen=True, slots=True)
class FactAtom:
    """One condition on a caller's facts."""

    subject: FactSubject
    where: Where
    op: GuardOp
    operand: int | str

    def __str__(self) -> str:
        where = self.where if isinstance(self.where, tuple) else (self.where,)
        named = " ".join(str(part) for part in where)
        return f"{self.subject.value} {named} {self.op.value} {self.operand}"


Guard = tuple[FactAtom, ...]


@dataclass(frozen=True, slots=True)
class InputFacts:
    """A caller's facts about one tensor input; an alignment of 0 is unknown.

    Units: sizes and strides in elements.
    """

    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment_bytes: int = 0
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class CallerFacts:
    """The facts of a caller; symbols have their names in the graph's canonical form."""

    symbols: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[InputFacts, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


NO_FACTS = CallerFacts()

_COMPARE: dict[GuardOp, Callable[[int, int], bool]] = {
    GuardOp.EQ: operator.eq,
    GuardOp.NE: operator.ne,
    GuardOp.LT: operator.lt,
    GuardOp.LE: operator.le,
    GuardOp.GT: operator.gt,
    GuardOp.GE: operator.ge,
    GuardOp.DIVISIBLE: lambda value, divisor: value % divisor == 0,
}


def first_failing(guard: Guard, facts: CallerFacts) -> FactAtom | None:
    """The first condition that does not hold, or None if all do."""
    return next((atom for atom in guard if not atom_holds(atom, facts)), None)


def atom_holds(atom: FactAtom, facts: CallerFacts) -> bool:
    """True if the caller states the fact and the comparison holds."""
    seen = fact_of(atom, facts)
    if seen is None:
        return False
    if isinstance(seen, int) and isinstance(atom.operand, int):
        return _COMPARE[atom.op](seen, atom.operand)
    if isinstance(seen, int) or isinstance(atom.operand, int):
        return False
    return _compare_text(atom.op, seen, atom.operand)


def fact_of(atom: FactAtom, facts: CallerFacts) -> int | str | None:
    """The caller's value of the fact that an atom compares; None if it states none."""
    where = atom.where
    if isinstance(where, str):
        by_name = facts.symbols if atom.subject is FactSubject.SYMBOL else facts.environment
        return by_name.get(where)
    if atom.subject in {FactSubject.PARAM_ADDRESS, FactSubject.PARAM_EXTENT}:
        return None
    number, axis = where if isinstance(where, tuple) else (where, 0)
    if number >= len(facts.inputs):
        return None
    source = facts.inputs[number]
    if atom.subject is FactSubject.INPUT_DTYPE:
        return source.dtype or None
    if atom.subject is FactSubject.INPUT_ALIGNMENT:
        return source.alignment_bytes or None
    extents = source.sizes if atom.subject is FactSubject.INPUT_SIZE else source.strides
    return extents[axis] if axis < len(extents) else None


def by_specificity(guards: Sequence[Guard]) -> list[int]:
    """Positions of guards, most conditions first, otherwise in the given order."""
    return sorted(range(len(guards)), key=lambda position: -len(guards[position]))


def _compare_text(op: GuardOp, seen: str, operand: str) -> bool:
    if op is GuardOp.EQ:
        return seen == operand
    if op is GuardOp.NE:
        return seen != operand
    left, right = _version(seen), _version(operand)
    if op is GuardOp.DIVISIBLE or left is None or right is None:
        return False
    order = (left > right) - (left < right)
    return _COMPARE[op](order, 0)


def _version(text: str) -> tuple[int, ...] | None:
    """A version's numbers without trailing zeros, so that 2.1 equals 2.1.0."""
    found = _VERSION.match(text)
    if found is None:
        return None
    numbers = [int(part) for part in found.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
