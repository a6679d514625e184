"""Caches that plain objects hold and a module registers are one input of an exported program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kernelfarm
from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.exported import export_model
from kernelfarm.ir.graph_ir import TensorType


class Cache:
    """A plain object, as key-value caches are."""

    def __init__(self) -> None:
        self.keys = torch.zeros(2, 8, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.register_buffer("keys", self.cache.keys)

    def forward(self, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.keys.index_copy_(1, position, new)
        return self.cache.keys @ new[0, 0]


def arguments(position: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(position)
    return torch.randn(2, 1, 4), torch.tensor([position])


def test_a_cache_of_a_plain_object_is_the_module_s_buffer() -> None:
    graph = export_model(Attention(), arguments(0)).captured.graph
    caches = [
        number
        for number, source in enumerate(graph.inputs)
        if isinstance(source.kind, TensorType) and source.kind.rank == 3 and source.name == "keys"
    ]
    assert [update.input for update in graph.updates] == caches
    assert len(graph.inputs) == 3


def test_a_compiled_model_writes_its_cache_in_place(endpoint: str) -> None:
    eager, ours = Attention(), Attention()
    compiled = kernelfarm.compile(ours, arguments(0))
    (program,) = compiled.programs.values()
    # Nothing but the result is made: the cache is written where it lies.
    assert program.plan.arena_bytes == 0
    assert sum(b.name.startswith("out") for b in program.plan.buffers) <= 1
    for position in (3, 0, 7):
        with torch.no_grad():
            expected = eager(*arguments(position))
        memory = ours.keys.data_ptr()
        torch.testing.assert_close(compiled(*arguments(position)), expected)
        torch.testing.assert_close(ours.keys, eager.keys)
        assert ours.keys.data_ptr() == memory


def test_an_argument_that_is_also_held_and_written_is_refused_with_advice() -> None:
    model = Attention()
    held = model.cache.keys

    class Twice(nn.Module):
        def forward(self, keys: torch.Tensor) -> torch.Tensor:
            held.add_(1)
            return held + keys

    with pytest.raises(UnsupportedGraphError, match=r"torch\.export"):
        export_model(Twice(), (held,))
