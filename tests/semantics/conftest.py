"""What these tests share: the farm's endpoint, a fresh backend, and the graphs that were sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelfarm.client import arena, eager
from kernelfarm.client.farm_client import FarmClient
from kernelfarm.ir.graph_ir import Graph
from tests.farm_process import Farm


@pytest.fixture(autouse=True)
def fresh_backend(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test compiles anew, by the shared farm, from the same random numbers."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager.forget_warnings()
    yield
    arena.release()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that this process sends to the farm, as it sends them."""
    graphs: list[Graph] = []
    ask = FarmClient.compile

    def noted(self, graph, targets, **options):
        graphs.append(graph)
        return ask(self, graph, targets, **options)

    monkeypatch.setattr(FarmClient, "compile", noted)
    return graphs
