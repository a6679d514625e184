"""What the client's tests share: settings that point at the farm, and a clean backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelfarm.client.programs import eager
from kernelfarm.client.runtime import arena
from tests.client.patience import be_patient
from tests.farm_process import Farm


@pytest.fixture(autouse=True)
def fresh_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test compiles anew and may be warned again."""
    torch._dynamo.reset()
    eager.forget_warnings()
    be_patient(monkeypatch)
    yield
    arena.release()


@pytest.fixture
def endpoint(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shared farm's endpoint, also in the environment."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    return farm.endpoint
