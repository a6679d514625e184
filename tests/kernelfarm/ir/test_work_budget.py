"""Budgets count every step, and their errors name phase and limit."""

from __future__ import annotations

import threading

import pytest

from kernelfarm.errors import CallerError, WorkBudgetError
from kernelfarm.ir.work_budget import phase, spend, work_budget


def test_without_a_budget_spending_is_free() -> None:
    spend(10**12)


def test_the_error_of_a_spent_budget_names_phase_and_limit() -> None:
    reported = r"^decode: the work budget of 5 steps is spent"
    with pytest.raises(WorkBudgetError, match=reported), work_budget(5), phase("decode"):
        spend(5)
        spend()


def test_a_phase_ends_with_its_block() -> None:
    with pytest.raises(WorkBudgetError, match=r"^the request: "), work_budget(5):
        with phase("decode"):
            spend(5)
        spend()


def test_an_overrun_is_the_callers_mistake_and_needs_no_retry() -> None:
    assert issubclass(WorkBudgetError, CallerError)
    assert (WorkBudgetError.status, WorkBudgetError.reason) == ("RESOURCE_EXHAUSTED", "WORK_BUDGET")
    assert WorkBudgetError.retry_after_s is None


def test_an_inner_budget_counts_in_the_outer_one() -> None:
    with work_budget(10) as outer:
        with work_budget(100) as inner:
            spend(7)
        assert (inner.used, outer.used) == (7, 7)
        with pytest.raises(WorkBudgetError, match="of 10 steps"), work_budget(100):
            spend(4)


def test_a_budget_belongs_to_its_thread() -> None:
    seen: list[int] = []

    def other() -> None:
        spend(100)
        with work_budget(3) as budget:
            spend(2)
        seen.append(budget.used)

    with work_budget(1) as budget:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert budget.used == 0
    assert seen == [2]
