"""The limit of bytes in flight at one gateway."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import Context

import pytest

from frontend_svc.api.byte_budget import ByteBudget
from kernelfarm.errors import FarmFullError
from kernelfarm.service.tenants.identity import Identity, NamespaceConfig, bind_identity


def test_requests_beyond_the_budget_must_retry() -> None:
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


def held_by(budget: ByteBudget, tenant: str, size_bytes: int) -> AbstractContextManager[None]:
    """The budget as a call of a tenant holds it, in a context of its own."""

    def enter() -> AbstractContextManager[None]:
        bind_identity(Identity(tenant, frozenset(), NamespaceConfig(tenant)))
        manager = budget.held(size_bytes)
        manager.__enter__()
        return manager

    return Context().run(enter)


def test_one_tenant_leaves_half_to_the_others() -> None:
    """A tenant that requests blobs and never reads them must not use up the whole budget."""
    budget = ByteBudget(100, "blobs")
    first = held_by(budget, "acme", 40)
    with pytest.raises(
        FarmFullError, match=r"40 bytes of tenant 'acme' .* at most 50 bytes of one tenant"
    ):
        held_by(budget, "acme", 20)
    second = held_by(budget, "beta", 50)
    for manager in (first, second):
        manager.__exit__(None, None, None)
    assert budget.held_bytes == 0
    held_by(budget, "acme", 80).__exit__(None, None, None)  # a single item is always served
