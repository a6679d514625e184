"""When a guard holds, and which variant comes first."""

from __future__ import annotations

import pytest

from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import (
    NO_FACTS,
    CallerFacts,
    FactAtom,
    FactSubject,
    atom_holds,
    by_specificity,
    first_failing,
)
from tests.support.manifests import FACTS, GUARD


def test_a_guard_holds_for_facts_that_meet_every_condition() -> None:
    assert first_failing(GUARD, FACTS) is None
    assert first_failing((), NO_FACTS) is None
    for atom in GUARD:
        assert first_failing(GUARD, NO_FACTS) == GUARD[0]
        assert not atom_holds(atom, NO_FACTS), f"{atom} without facts"


@pytest.mark.parametrize(
    ("seen", "op", "operand", "holds"),
    [
        ("550.54.15", GuardOp.GE, "550.54", True),
        ("550.9", GuardOp.LT, "550.54", True),
        ("2.13.0", GuardOp.LE, "2.13", True),
        ("2.13.0+cpu", GuardOp.GT, "2.12", True),
        ("2.13.0", GuardOp.EQ, "2.13", False),
        ("unknown", GuardOp.GE, "1", False),
        ("2.9", GuardOp.GE, "2.13", False),
    ],
)
def test_versions_compare_by_their_numbers(
    seen: str, op: GuardOp, operand: str, holds: bool
) -> None:
    atom = FactAtom(FactSubject.ENVIRONMENT, "v", op, operand)
    assert atom_holds(atom, CallerFacts(environment={"v": seen})) is holds


def test_an_unknown_alignment_or_axis_does_not_hold() -> None:
    for subject, where in (
        (FactSubject.INPUT_ALIGNMENT, 1),
        (FactSubject.INPUT_SIZE, (1, 1)),
        (FactSubject.INPUT_STRIDE, (2, 0)),
    ):
        assert not atom_holds(FactAtom(subject, where, GuardOp.GE, 0), FACTS)


def test_more_conditions_come_first_and_equal_ones_keep_their_order() -> None:
    assert by_specificity([(), GUARD[:1], GUARD, GUARD[1:2]]) == [2, 1, 3, 0]
