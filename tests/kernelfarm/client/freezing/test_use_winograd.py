"""Which convolutions of frozen models become those of Winograd's algorithm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernelfarm.client.capture.exported import export_model
from kernelfarm.client.custom_operators.winograd import transformed_weight
from kernelfarm.client.freezing.exported import freeze_exported
from kernelfarm.ir.product_choice import ProductChoice
from tests.support.frozen_calls import FrozenCalls

AMD, OTHER = "cpu:x86-64-v3-amd", "cpu:x86-64-v4"
WINOGRAD = "kernelfarm.winograd_convolution.default"


def layer(channels: int = 32, results: int = 40, side: int = 3, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(channels, results, side, **options).eval()


@pytest.mark.parametrize(
    ("options", "pixels"),
    [
        ({"padding": 1}, (14, 14)),
        ({"padding": 0}, (7, 7)),
        ({"padding": 1}, (13, 9)),
        ({"padding": 1, "bias": False}, (6, 11)),
        ({"channels": 17, "results": 33, "padding": 1}, (10, 10)),
        ({"padding": "same"}, (9, 8)),
    ],
)
def test_a_convolution_is_replaced(options: dict[str, Any], pixels: tuple[int, int]) -> None:
    model = layer(**options)
    x = torch.randn(2, options.get("channels", 32), *pixels)
    calls = FrozenCalls(model, AMD)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert WINOGRAD in calls.targets
    assert not any("_convolution_pointwise" in target for target in calls.targets)
    once = calls.frozen[-1].fold.graph.find_nodes(op="call_function", target=transformed_weight)
    assert len(once) == 1


@pytest.mark.parametrize(
    ("options", "dtype", "target"),
    [
        ({"padding": 1, "stride": 2}, torch.float32, AMD),
        ({"padding": 2, "dilation": 2}, torch.float32, AMD),
        ({"padding": 2}, torch.float32, AMD),
        ({"padding": (0, 1)}, torch.float32, AMD),
        ({"padding": 1, "results": 32, "groups": 2}, torch.float32, AMD),
        ({"padding": 2, "side": 5}, torch.float32, AMD),
        ({"channels": 8, "padding": 1}, torch.float32, AMD),
        ({"padding": 1}, torch.float16, OTHER),
        ({"padding": 1}, torch.float32, OTHER),
    ],
)
def test_others_are_not(options: dict[str, Any], dtype: torch.dtype, target: str) -> None:
    model = layer(**options).to(dtype)
    x = torch.randn(2, options.get("channels", 32), 14, 14).to(dtype)
    calls = FrozenCalls(model, target)
    torch.testing.assert_close(calls(x), model(x), rtol=1.6e-2, atol=1e-2)
    assert WINOGRAD not in calls.targets


def test_a_convolution_of_bf16_that_runs_in_f32_is_replaced_as_one_of_f32() -> None:
    model = layer(padding=1).bfloat16()
    calls, x = FrozenCalls(model, AMD), torch.randn(2, 32, 14, 14).bfloat16()
    found, exact = calls(x), copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
    conversion = "aten._to_copy.default"
    assert calls.targets[:3] == [conversion, WINOGRAD, conversion]


def test_those_of_a_varying_number_of_images_are_not() -> None:
    model, x = layer(padding=1), torch.randn(3, 32, 14, 14)
    torch._dynamo.mark_dynamic(x, 0)
    calls = FrozenCalls(model, AMD, dynamic=None)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert WINOGRAD not in calls.targets


def test_those_of_a_model_whose_products_are_the_library_s_are_not() -> None:
    model, x = layer(padding=1), torch.randn(1, 32, 14, 14)
    calls = FrozenCalls(model, AMD, ProductChoice.LIBRARY)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-5)
    assert WINOGRAD not in calls.targets


class Residual(nn.Module):
    """A convolution of one pixel beside one of nine, whose results are added, and their norms."""

    def __init__(self) -> None:
        super().__init__()
        self.beside, self.window = nn.Conv2d(32, 64, 1, stride=2), nn.Conv2d(64, 64, 3, padding=1)
        self.first, self.norm = nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (n, 32, h, w) -> (n, 64, h / 2, w / 2)."""
        found = self.norm(self.window(functional.relu(self.first(x))))
        return functional.relu(self.beside(x) + found)


def test_a_packed_convolution_adds_no_image_that_kernels_add_at_no_cost() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(1, 32, 28, 28)
    calls = FrozenCalls(model, AMD)
    ours, eager = calls(x), model(x)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert ours.stride() == eager.stride()
    used = [target for target in calls.targets if "onvolution" in target]
    packed = "mkldnn._convolution_pointwise.default"
    assert sorted(used) == sorted([WINOGRAD, packed, packed])
    assert "aten.add.Tensor" in calls.targets


@pytest.mark.parametrize(("targets", "is_chosen"), [([AMD], True), ([AMD, OTHER], False)])
def test_an_exported_model_has_them_for_one_target(targets: list[str], *, is_chosen: bool) -> None:
    model, x = layer(padding=1), torch.randn(1, 32, 14, 14)
    captured, constants = freeze_exported(export_model(model, (x,)), targets)
    assert constants is not None
    assert any(node.op == WINOGRAD for node in captured.graph.nodes) == is_chosen
