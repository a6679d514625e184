"""Each of the client's tests begins with a backend that knows nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.farm import Farm
from tests.support.tampering_proxy import TamperingFarm
from tests.support.trace_machines import Fleet


@pytest.fixture(autouse=True)
def _anew(fresh_backend: None) -> None:
    """Makes `fresh_backend` every test's."""


@pytest.fixture
def fleet(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    meddling = TamperingFarm(farm.endpoint)
    yield Fleet(farm, meddling, meddling.start(), tmp_path, monkeypatch)
    meddling.stop()
