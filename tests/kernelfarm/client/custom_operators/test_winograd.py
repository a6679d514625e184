"""The operator that computes a convolution by Winograd's algorithm, where no kernel does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernelfarm.client.custom_operators.winograd import WINOGRAD, transformed_weight


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("pixels", [(7, 7), (13, 9), (3, 4)])
def test_it_is_the_convolution(pixels: tuple[int, int], width: int, padding: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, *pixels, dtype=torch.float64)
    weight, bias = torch.randn(18, 5, 3, 3).double(), torch.randn(18).double()
    turned = transformed_weight(weight, width)
    assert turned.shape == (16, -(-18 // width), 5, width)
    ours = WINOGRAD(x, turned, bias, 18, padding)
    torch.testing.assert_close(ours, functional.conv2d(x, weight, bias, padding=padding))
    assert ours.is_contiguous(memory_format=torch.channels_last)
    plain = WINOGRAD(x, turned, None, 18, padding)
    torch.testing.assert_close(plain, functional.conv2d(x, weight, padding=padding))


def test_a_weight_is_transformed_in_f64_and_rounded_once() -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 3, 3, 3)
    exact = transformed_weight(weight.double(), 16)
    assert torch.equal(transformed_weight(weight, 16), exact.float())


def test_its_result_without_elements_has_the_same_shape_and_layout() -> None:
    x, weight = torch.randn(2, 3, 6, 7), transformed_weight(torch.randn(4, 3, 3, 3), 4)
    meta = WINOGRAD(x.to("meta"), weight.to("meta"), None, 4, 0)
    real = WINOGRAD(x, weight, None, 4, 0)
    assert (meta.shape, meta.stride()) == (real.shape, real.stride())
