"""What the acceptance tests share: the settings of a client, and one pass over everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelfarm.client import arena, eager
from tests.acceptance.everything import Everything, compile_everything
from tests.farm_process import Farm


@pytest.fixture(scope="session")
def everything(farm: Farm) -> Everything:
    """Every real input for every target, compiled once."""
    return compile_everything(farm.endpoint)


@pytest.fixture
def endpoint(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The shared farm's endpoint, also in the environment; models compile anew."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    torch._dynamo.reset()
    eager.forget_warnings()
    yield farm.endpoint
    arena.release()
