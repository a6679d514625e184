"""Each of the client's tests begins with a backend that knows nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.farm.client import FarmClient
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


@pytest.fixture
def requests_made(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Targets of the requests that this process makes, as it makes them."""
    made: list[list[str]] = []
    ask = FarmClient.compile

    def counted(self: Any, graph: Any, targets: Sequence[str], **options: Any) -> Any:
        made.append(list(targets))
        return ask(self, graph, targets, **options)

    monkeypatch.setattr(FarmClient, "compile", counted)
    return made
