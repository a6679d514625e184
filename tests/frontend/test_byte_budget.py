"""How much may be in flight at one gateway."""

from __future__ import annotations

import pytest

from frontend_svc.byte_budget import ByteBudget
from kernelfarm.errors import FarmFullError


def test_requests_beyond_the_budget_are_told_to_come_again() -> None:
    budget = ByteBudget(100, "requests")
    with budget.held(60), budget.held(40):
        with pytest.raises(FarmFullError, match="at most 100") as refused, budget.held(1):
            pass
        assert refused.value.retry_after_s == 1.0
    with budget.held(100):
        assert budget.held_bytes == 100
    assert budget.held_bytes == 0


def test_a_single_request_larger_than_the_budget_is_served() -> None:
    budget = ByteBudget(100, "requests")
    with budget.held(1000), pytest.raises(FarmFullError), budget.held(1):
        pass
    assert budget.held_bytes == 0
