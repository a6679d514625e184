"""Changes of frozen parameters: which are noticed, and what happens then."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelfarm.client import counters
from kernelfarm.client.freezing import constants
from kernelfarm.client.freezing.constants import FrozenWarning
from tests.support.frozen_calls import FrozenCalls


def _in_place(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def _new_parameter(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


def _new_memory(layer: nn.Linear) -> None:
    layer.weight.data = layer.weight.data * 2


def _loaded(layer: nn.Linear) -> None:
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})


@pytest.mark.parametrize("change", [_in_place, _new_parameter, _new_memory, _loaded])
def test_after_a_change_the_constants_are_computed_again(
    change: Callable[[nn.Linear], None],
) -> None:
    layer, x = nn.Linear(80, 90, bias=False), torch.randn(3, 80)
    calls = FrozenCalls(layer)
    torch.testing.assert_close(calls(x), layer(x))
    change(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrozenWarning)
        torch.testing.assert_close(calls(x), layer(x))
    assert len(calls.frozen) == 1  # nothing was compiled again


def test_the_first_change_is_warned_of_and_each_is_counted() -> None:
    counters.reset()
    layer, x = nn.Linear(80, 90), torch.randn(3, 80)
    calls = FrozenCalls(layer)
    calls(x)
    _in_place(layer)
    with pytest.warns(FrozenWarning, match="without `freezing`"):
        calls(x)
    _in_place(layer)
    calls(x)
    calls(x)
    found = counters.snapshot()
    assert (found["frozen.folded"], found["frozen.refolded"]) == (3, 2)


def test_layers_that_share_their_code_have_constants_of_their_own() -> None:
    counters.reset()
    layers = [nn.Linear(80, 80) for _ in range(3)]
    calls, x = FrozenCalls(lambda layer, x: layer(x).relu()), torch.randn(3, 80)
    for _ in range(2):
        for layer in layers:
            torch.testing.assert_close(calls(layer, x), layer(x).relu())
    assert len(calls.frozen) == 1
    found = counters.snapshot()
    assert found["frozen.folded"] == len(layers)
    assert "frozen.refolded" not in found


def test_parameters_that_were_made_in_inference_mode_have_no_counter() -> None:
    with torch.inference_mode():
        layer, x = nn.Linear(80, 90), torch.randn(3, 80)
        calls = FrozenCalls(layer)
        torch.testing.assert_close(calls(x), layer(x))
        layer.weight = nn.Parameter(layer.weight * 2)
        torch.testing.assert_close(calls(x), layer(x))


def test_weights_that_calls_read_are_moved_to_huge_pages_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[torch.Tensor] = []
    monkeypatch.setattr(constants, "move_to_huge_pages", moved.extend)
    layer, x, scale = nn.Linear(80, 90), torch.randn(3, 80), nn.Parameter(torch.randn(90))
    layer.register_parameter("scale", scale)
    calls = FrozenCalls(lambda layer, x: (layer(x) * layer.scale) @ torch.exp(layer.scale))
    for _ in range(2):
        calls(layer, x)
    exact = torch.exp(scale.detach())
    assert any(tensor is scale for tensor in moved)
    assert sum(tensor.shape == (90,) and torch.equal(tensor, exact) for tensor in moved) == 1
