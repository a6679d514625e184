"""Timeouts of clients for slow machines: a farm that is busy is not taken for one that is away."""

from __future__ import annotations

import pytest

from tests.support.farm import TIMEOUT_S

# Modules that wait for the state of invalidations.
_WAITERS = ("programs.tiers", "traces.shared")


def set_watch_timeout(monkeypatch: pytest.MonkeyPatch, timeout_s: float = TIMEOUT_S) -> None:
    """Sets how long clients of this process wait for the first message of a watch."""
    for module in _WAITERS:
        monkeypatch.setattr(f"kernelfarm.client.{module}.WATCH_TIMEOUT_S", timeout_s)
