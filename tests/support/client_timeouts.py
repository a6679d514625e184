"""Timeouts of clients for slow machines: a farm that is busy is not taken for one that is away."""

from __future__ import annotations

import pytest

from tests.support.farm import TIMEOUT_S


def set_watch_timeout(monkeypatch: pytest.MonkeyPatch, timeout_s: float = TIMEOUT_S) -> None:
    """Sets how long clients of this process wait for the first message of a watch."""
    monkeypatch.setattr("kernelfarm.client.farm.access.WATCH_TIMEOUT_S", timeout_s)
