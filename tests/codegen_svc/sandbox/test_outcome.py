"""The worker trusts no time that a sandboxed process returns."""

from __future__ import annotations

import time

import pytest

from codegen_svc.backends.stage_times import MAX_TIMES, StageTime, recorded_stages, stage
from codegen_svc.sandbox.outcome import outcome_of_variants, parsed_outcome, times_of_outcome
from kernelfarm.errors import InternalError

BEGAN_NS, ENDED_NS = 1_000, 2_000


def returned(*times: StageTime) -> tuple[StageTime, ...]:
    outcome = parsed_outcome(outcome_of_variants((), "cpu:x86-64-v3", times))
    return times_of_outcome(outcome, BEGAN_NS, ENDED_NS)


def test_times_within_the_compilation_are_returned_in_order() -> None:
    times = (StageTime("kernel.o", BEGAN_NS, 1_500), StageTime("ptx", 1_400, ENDED_NS))
    assert returned(*times) == times


@pytest.mark.parametrize(
    ("name", "began_ns", "ended_ns"),
    [
        ("ptx", BEGAN_NS - 1, 1_500),
        ("ptx", 1_500, ENDED_NS + 1),
        ("ptx", 1_500, 1_400),
        ("ptx", -(2**63), 2**63 - 1),
        ("", 1_100, 1_200),
        ("a b", 1_100, 1_200),
        ("x" * 65, 1_100, 1_200),
    ],
)
def test_times_that_break_a_rule_are_refused(name: str, began_ns: int, ended_ns: int) -> None:
    with pytest.raises(InternalError, match="a compilation returned"):
        returned(StageTime(name, began_ns, ended_ns))


def test_too_many_times_are_refused_and_not_recorded() -> None:
    with pytest.raises(InternalError, match="257 stages; expected at most 256"):
        returned(*[StageTime("ptx", 1_100, 1_200)] * (MAX_TIMES + 1))
    with recorded_stages() as times:
        for _ in range(MAX_TIMES + 1):
            with stage("ptx"):
                pass
    assert len(times) == MAX_TIMES


def test_a_stage_that_fails_is_recorded_and_nothing_outside_of_a_record() -> None:
    before_ns = time.monotonic_ns()
    with recorded_stages() as times, pytest.raises(ZeroDivisionError), stage("ttir"):
        raise ZeroDivisionError
    with stage("llir"):
        pass
    ((name, began_ns, ended_ns),) = times
    assert name == "ttir" and before_ns <= began_ns <= ended_ns <= time.monotonic_ns()
