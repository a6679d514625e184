"""The weights of depthwise convolutions in frozen models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from kernelfarm.client.freezing.depthwise_weights import ordered_window
from tests.support.frozen_calls import FrozenCalls

AMD, OTHER = "cpu:x86-64-v3-amd", "cpu:x86-64-v4"
PLAIN, PACKED = "aten.convolution.default", "_convolution_pointwise"


def layer(channels: int = 24, side: int = 3, groups: int = 24, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(channels, channels, side, groups=groups, **options).eval()


def orders(calls: FrozenCalls) -> int:
    """The weights that a frozen graph orders once."""
    frozen = calls.frozen[-1]
    assert frozen is not None
    return len(frozen.fold.graph.find_nodes(op="call_function", target=ordered_window))


@pytest.mark.parametrize(
    ("options", "pixels"),
    [
        ({"padding": 1}, (14, 14)),
        ({"padding": 2, "side": 5, "stride": 2}, (15, 13)),
        ({"padding": 3, "side": 7, "bias": False}, (7, 7)),
        ({"channels": 9, "groups": 9}, (6, 11)),
    ],
)
def test_a_weight_is_ordered_once(options: dict[str, Any], pixels: tuple[int, int]) -> None:
    model = layer(**options)
    x = torch.randn(2, options.get("channels", 24), *pixels)
    calls = FrozenCalls(model, AMD)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert PLAIN in calls.targets
    assert orders(calls) == 1


def test_a_norm_behind_it_is_folded() -> None:
    model = nn.Sequential(layer(padding=1), nn.BatchNorm2d(24), nn.Hardswish()).eval()
    model[1].running_mean.normal_()
    calls, x = FrozenCalls(model, AMD), torch.randn(2, 24, 9, 9)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert orders(calls) == 1
    assert not any("batch_norm" in target for target in calls.targets)


def test_a_weight_of_bf16_is_ordered_in_f32() -> None:
    model = layer(padding=1).bfloat16()
    calls, x = FrozenCalls(model, AMD), torch.randn(2, 24, 14, 14).bfloat16()
    found, exact = calls(x), copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
    assert orders(calls) == 1


class Shared(nn.Module):
    """Two convolutions by one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer(padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x).relu())


def test_a_shared_weight_stays_as_it_is() -> None:
    model, x = Shared(), torch.randn(1, 24, 8, 8)
    calls = FrozenCalls(model, AMD)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert PLAIN in calls.targets
    assert calls.frozen[-1] is None or orders(calls) == 0


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({"padding": 1}, OTHER),
        ({"padding": 2, "dilation": 2}, AMD),
        ({"padding": 1, "groups": 12}, AMD),
        ({"padding": 1, "groups": 1}, AMD),
        ({"side": 1}, AMD),
        ({"padding": 3}, AMD),
        ({"channels": 2, "groups": 2}, AMD),
    ],
)
def test_others_are_packed(options: dict[str, Any], target: str) -> None:
    model = layer(**options)
    x = torch.randn(2, options.get("channels", 24), 14, 14)
    calls = FrozenCalls(model, target)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert any(PACKED in target for target in calls.targets) or "winograd" in str(calls.targets)


def test_a_varying_number_of_images_is_allowed() -> None:
    model = layer(padding=1)
    calls = FrozenCalls(model, AMD, dynamic=None)
    for images in (2, 3):
        x = torch.randn(images, 24, 9, 9)
        torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert orders(calls) == 1
