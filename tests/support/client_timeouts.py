"""Clients on a slow machine: a farm that is busy is not taken to be away."""

from __future__ import annotations

import pytest

from tests.support.farm import TIMEOUT_S


def be_patient(monkeypatch: pytest.MonkeyPatch, patience_s: float = TIMEOUT_S) -> None:
    """Lets clients of this process wait for a farm's word as long as it takes."""
    monkeypatch.setattr("kernelfarm.client.farm.access.WATCH_TIMEOUT_S", patience_s)
