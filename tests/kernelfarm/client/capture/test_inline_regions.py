"""A model with marked regions has the graphs and keys of the same model without marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.digest import program_key
from tests.support.traced_graphs import traced
from tests.support.two_ways import long_way, short_way

Mark = Callable[[Callable[..., Any]], Callable[..., Any]]
MARKED: Mark = torch.compiler.nested_compile_region
TARGET = "cuda:sm_90a"


def unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _Layer(nn.Module):
    """A transformer layer of 4 heads of 8; `mark` marks its calls."""

    def __init__(self, mark: Mark) -> None:
        super().__init__()
        self.norm, self.given = nn.LayerNorm(32), nn.Linear(32, 96)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.call = mark(_Layer.run)

    def run(self, x: Tensor) -> Tensor:
        q, k, v = self.given(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.down(F.gelu(self.up(attended)))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def stacked(mark: Mark) -> nn.Module:
    return nn.Sequential(*(_Layer(mark) for _ in range(3))).eval()


def keys(function: Callable[..., Any], *args: Any) -> list[str]:
    return [program_key(found.graph, TARGET, ()).hex() for found in traced(function, *args)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test fails if Dynamo's graphs have no call of a region, which would prove nothing."""
    from kernelfarm.client.capture import inline_regions  # noqa: PLC0415

    seen = []
    inline = inline_regions._inline

    def counted(*args: Any) -> bool:
        seen.append(args)
        return inline(*args)

    monkeypatch.setattr(inline_regions, "_inline", counted)
    yield
    assert len(seen) >= 2


def test_marks_do_not_change_what_either_way_traces(calls: None) -> None:
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        found = [short_way(stacked(mark), x) for mark in (MARKED, unmarked)]
        (long,) = long_way(stacked(MARKED), x)
    (marked,), (plain,) = found
    assert marked.made is not None and plain.made is not None and long.made is not None
    assert marked.made.key == plain.made.key == long.made.key


def test_marks_do_not_change_the_graphs_of_a_training_step(calls: None) -> None:
    x = torch.randn(2, 5, 32)
    loss = lambda model: lambda x: model(x).square().mean()  # noqa: E731
    assert keys(loss(stacked(MARKED)), x) == keys(loss(stacked(unmarked)), x)


def nested(mark: Mark) -> Callable[[Tensor], Tensor]:
    @mark
    def inner(x: Tensor) -> Tensor:
        return x.sin() + 1

    @mark
    def outer(x: Tensor) -> tuple[Tensor, Tensor]:
        return inner(x) * 2, inner(x * 3)

    def function(x: Tensor) -> Tensor:
        one, two = outer(x)
        three, four = outer(one - two)
        return three / four.exp()

    return function


def test_regions_may_be_nested_and_have_several_results(calls: None) -> None:
    x = torch.randn(6)
    assert keys(nested(MARKED), x) == keys(nested(unmarked), x)
