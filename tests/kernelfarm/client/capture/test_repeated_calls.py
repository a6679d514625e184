"""Equal calls of a graph run once; what they record is tested beside AOT Autograd's graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelfarm.client.capture.repeated_calls import RepeatedCalls
from tests.support.two_ways import short_way


def runs(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *args: Any) -> int:
    """How many calls of the function's graph run; the others are copies."""
    ran = []
    run = RepeatedCalls._ran

    def counted(calls: RepeatedCalls, call: Callable[[], Any]) -> Any:
        ran.append(call)
        return run(calls, call)

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(RepeatedCalls, "_ran", counted)
        (outcome,) = short_way(function, *args)
    assert outcome.made is not None
    return len(ran)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(self.up(self.norm(x)).relu())
        return result


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(_Layer() for _ in range(count))).eval()


def test_equal_layers_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 8)
    one, four = (runs(monkeypatch, layers(count), x) for count in (1, 4))
    assert four == one == 5


def test_calls_run_again_after_a_call_that_may_have_switched_a_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def switched(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x.sin()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            second = x.sin()
        return first, second

    x = torch.randn(4)
    assert runs(monkeypatch, lambda x: (x.sin(), x.sin()), x) == 1
    assert runs(monkeypatch, switched, x) == 4  # both calls, and both ends of the block
