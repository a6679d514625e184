"""What the acceptance tests share: the settings of a client, and one pass over everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelfarm.client.programs import eager
from kernelfarm.client.runtime import arena
from tests.e2e.compiled_inputs import Everything, compile_everything
from tests.support.farm import Farm


@pytest.fixture(scope="session")
def everything(farm: Farm, request: pytest.FixtureRequest) -> Everything:
    """Real inputs for every target, compiled once; all of them if a slow test asks for them."""
    asking = [i for i in request.session.items if "everything" in getattr(i, "fixturenames", ())]
    is_whole = any(item.get_closest_marker("slow") for item in asking)
    return compile_everything(farm.endpoint, is_whole=is_whole)


@pytest.fixture
def endpoint(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The shared farm's endpoint, also in the environment; models compile anew."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    torch._dynamo.reset()
    eager.reset_warnings()
    yield farm.endpoint
    arena.release()
