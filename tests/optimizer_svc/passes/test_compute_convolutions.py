"""Convolutions with a window of one pixel, which kernels compute on some processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.targets import ConvolutionFacts, TargetFacts, target_facts
from tests.support.compiled_kernels import run_targets
from tests.support.contraction_programs import ONE_PIXEL, grouped_convolution, run
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compiled_for
from tests.support.optimizer_passes import before_and_after

FORMATS = {"first": torch.contiguous_format, "last": torch.channels_last}


@pytest.mark.golden
def test_a_convolution_of_groups_becomes_a_product_by_the_pixels_of_windows() -> None:
    """Of two groups of 32 channels, with strides, padding and dilation."""
    assert_golden(
        before_and_after("compute-convolutions", grouped_convolution(), "cuda:sm_90a"),
        """\
-- before compute-convolutions: graph
graph prims 1
%0: bf16[2, 64, 9, 12]@[6912, 1, 768, 64] = input "x"
%1: bf16[64, 32, 3, 3]@[288, 9, 3, 1] = input "w"
%2: bf16[2, 64, 5, 5]@[1600, 1, 320, 64] = extern(%0, %1; is_contraction=true, node=0, op="aten.convolution.default", window=[2, 2, 2, 1, 2, 2, 2]) from [0]
%3: bf16[2, 64, 5, 5] = abs(%2) from [1]
return %3: bf16[2, 64, 5, 5]@[1600, 1, 320, 64]
-- after: graph
graph prims 1
%0: bf16[2, 64, 9, 12]@[6912, 1, 768, 64] = input "x"
%1: bf16[64, 32, 3, 3]@[288, 9, 3, 1] = input "w"
%5: bf16[2, 9, 12, 64] = permute(%0; dims=[0, 2, 3, 1]) from [0]
%4: bf16[64, 3, 3, 32] = permute(%1; dims=[0, 2, 3, 1]) from [0]
%6: bf16[2, 13, 14, 64] = pad(%5; high=[{0}, {2}, {1}, {0}], low=[{0}, {2}, {1}, {0}], value=0.0) from [0]
%7: bf16[2, 5, 5, 64, 3, 3] = window(%6; dilations=[{2}, {2}], dims=[1, 2], sizes=[{3}, {3}], strides=[{2}, {2}]) from [0]
%8: bf16[2, 5, 5, 2, 32, 3, 3] = reshape(%7; shape=[{2}, {5}, {5}, {2}, {32}, {3}, {3}]) from [0]
%9: bf16[2, 32, 3, 3, 32] = reshape(%4; shape=[{2}, {32}, {3}, {3}, {32}]) from [0]
%10: bf16[2, 5, 5, 2, 3, 3, 32] = permute(%8; dims=[0, 1, 2, 3, 5, 6, 4]) from [0]
%11: bf16[2, 32, 3, 3, 32] = permute(%9; dims=[0, 1, 2, 3, 4]) from [0]
%12: f32[2, 5, 5, 2, 3, 3, 32] = convert(%10; dtype=f32) from [0]
%13: f32[2, 5, 5, 2, 32, 3, 3, 32] = broadcast_in_dim(%12; dims=[0, 1, 2, 3, 5, 6, 7], shape=[{2}, {5}, {5}, {2}, {32}, {3}, {3}, {32}]) from [0]
%14: f32[2, 32, 3, 3, 32] = convert(%11; dtype=f32) from [0]
%15: f32[2, 5, 5, 2, 32, 3, 3, 32] = broadcast_in_dim(%14; dims=[3, 4, 5, 6, 7], shape=[{2}, {5}, {5}, {2}, {32}, {3}, {3}, {32}]) from [0]
%16: f32[2, 5, 5, 2, 32, 3, 3, 32] = mul(%13, %15) from [0]
%17: f32[2, 5, 5, 2, 32] = sum(%16; dims=[5, 6, 7]) from [0]
%18: f32[2, 5, 5, 64] = reshape(%17; shape=[{2}, {5}, {5}, {64}]) from [0]
%19: bf16[2, 5, 5, 64] = convert(%18; dtype=bf16) from [0]
%2: bf16[2, 64, 5, 5] = permute(%19; dims=[0, 3, 1, 2]) from [0]
%3: bf16[2, 64, 5, 5] = abs(%2) from [1]
return %3: bf16[2, 64, 5, 5]@[1600, 1, 320, 64]
""",
    )


@pytest.mark.golden
def test_a_convolution_becomes_a_sum_over_the_channels() -> None:
    assert_golden(
        before_and_after("compute-convolutions", ONE_PIXEL, "cpu:x86-64-v4-amd"),
        """\
-- before compute-convolutions: graph
graph prims 1
%0: f32[2, 8, 5, 7]@[280, 1, 56, 8] = input "x"
%1: f32[16, 8, 1, 1]@[8, 1, 1, 1] = input "w"
%2: f32[16]@[1] = input "b"
%3: f32[2, 16, 5, 7]@[560, 1, 112, 16] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default", window=[1, 1, 0, 0, 1, 1, 1]) from [0]
return %3: f32[2, 16, 5, 7]@[560, 1, 112, 16]
-- after: graph
graph prims 1
%0: f32[2, 8, 5, 7]@[280, 1, 56, 8] = input "x"
%1: f32[16, 8, 1, 1]@[8, 1, 1, 1] = input "w"
%2: f32[16]@[1] = input "b"
%4: f32[2, 16, 8, 5, 7] = broadcast_in_dim(%0; dims=[0, 2, 3, 4], shape=[{2}, {16}, {8}, {5}, {7}]) from [0]
%5: f32[16, 8] = reshape(%1; shape=[{16}, {8}]) from [0]
%6: f32[2, 16, 8, 5, 7] = broadcast_in_dim(%5; dims=[1, 2], shape=[{2}, {16}, {8}, {5}, {7}]) from [0]
%7: f32[2, 16, 8, 5, 7] = mul(%4, %6) from [0]
%8: f32[2, 16, 5, 7] = sum(%7; dims=[2]) from [0]
%9: f32[2, 16, 5, 7] = broadcast_in_dim(%2; dims=[1], shape=[{2}, {16}, {5}, {7}]) from [0]
%3: f32[2, 16, 5, 7] = add(%8, %9) from [0]
return %3: f32[2, 16, 5, 7]@[560, 1, 112, 16]
""",
    )


def convolving(name: str) -> TargetFacts:
    return replace(
        target_facts(name), convolutions=ConvolutionFacts(("f32",), ("bf16", "f32"), 8, 1 << 25)
    )


def run_by(target: str, function: Callable[..., Tensor], *args: Any) -> tuple[Tensor, Counts]:
    counts = Counts()
    result, _ = run(convolving(target), counts, function, *args)
    return result, counts


def check(ours: Tensor, function: Callable[..., Tensor], *args: Any) -> None:
    """The error against float64 is at most 4 times eager's, and the layout is eager's."""
    eager = function(*args)
    exact = function(*(a.double() if isinstance(a, Tensor) else a for a in args))
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= max(4 * errors[1], 1e-6)
    assert ours.stride() == eager.stride()


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize(
    ("images", "channels", "results", "side"), [(1, 8, 8, 7), (2, 40, 17, 5), (3, 130, 64, 9)]
)
def test_results_are_as_exact_as_eager_s(
    images: int, channels: int, results: int, side: int, target: str, layout: str
) -> None:
    """What follows, here a residual and an activation, is a part of the kernel."""
    torch.manual_seed(channels)
    x = torch.randn(images, channels, side, side + 1).to(memory_format=FORMATS[layout])
    weight = torch.randn(results, channels, 1, 1)
    added = torch.randn(images, results, side, side + 1).to(memory_format=FORMATS[layout])

    def layer(x: Tensor, weight: Tensor, bias: Tensor, added: Tensor) -> Tensor:
        return functional.relu(functional.conv2d(x, weight, bias) + added)

    args = x, weight, torch.randn(results), added
    ours, counts = run_by(target, layer, *args)
    assert (counts.externs, counts.launches) == ([], 1)
    check(ours, layer, *args)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_single_pixel_of_16_bits_is_a_product_of_one_row(target: str, has_bias: bool) -> None:
    """Sums are in f32, and rounded once. More pixels are the framework's."""
    torch.manual_seed(0)
    weight = torch.randn(24, 40, 1, 1).bfloat16()
    bias = torch.randn(24).bfloat16() if has_bias else None

    def layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x.mean((2, 3), keepdim=True), weight, bias)

    x = torch.randn(1, 40, 6, 6).bfloat16()
    ours, counts = run_by(target, layer, x, weight, bias)
    assert counts.externs == []
    mean = x.mean((2, 3), keepdim=True).double()
    exact = functional.conv2d(mean, weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=2**-8)
    several = torch.randn(2, 40, 6, 6).bfloat16()
    ours, counts = run_by(target, layer, several, weight, bias)
    assert counts.externs == ["aten.convolution.default"]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("target", run_targets())
def test_what_is_convolved_is_stored_as_the_framework_s_images_are(
    target: str, layout: str
) -> None:
    """A gate before, a window of three pixels behind: nothing is copied to another layout."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 8, 8).to(memory_format=FORMATS[layout])
    second = torch.randn(12, 24, 3, 3).to(memory_format=FORMATS[layout])
    weights = torch.randn(24, 16, 1, 1), second

    def layers(x: Tensor, gate: Tensor, first: Tensor, second: Tensor) -> Tensor:
        found = functional.conv2d(functional.hardswish(x * gate), first)
        return functional.conv2d(functional.hardswish(found), second, padding=1)

    args = x, torch.rand(2, 16, 1, 1), *weights
    ours, counts = run_by(target, layers, *args)
    assert (counts.externs, counts.launches) == (["aten.convolution.default"], 2)
    check(ours, layers, *args)


@pytest.mark.parametrize("target", run_targets())
def test_the_images_of_a_convolution_may_vary_in_number_and_size(target: str) -> None:
    counts = Counts()
    weight, bias = torch.randn(24, 16, 1, 1), torch.randn(24)
    fast = compiled_for(functional.conv2d, convolving(target), counts)
    with torch.no_grad():
        for shape in ((2, 16, 3, 4), (5, 16, 9, 2), (3, 16, 20, 30)):
            x = torch.randn(shape)
            torch._dynamo.maybe_mark_dynamic(x, [0, 2, 3])
            torch.testing.assert_close(fast(x, weight, bias), functional.conv2d(x, weight, bias))
    assert (counts.graphs, counts.externs) == (1, [])


@pytest.mark.parametrize("target", run_targets())
def test_strides_that_keep_the_size_are_not_mistaken_for_none(target: str) -> None:
    """An image of 3 x 3, strides of 2 and padding of 1 give 3 x 3 pixels, too."""
    x, weight = torch.randn(1, 8, 3, 3), torch.randn(8, 8, 1, 1)

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(x, weight, stride=2, padding=1)

    assert layer(x, weight).shape == x.shape
    ours, counts = run_by(target, layer, x, weight)
    assert counts.externs == ["aten.convolution.default"]
    torch.testing.assert_close(ours, layer(x, weight))


@pytest.mark.sweep
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_image", [False, True])
def test_convolutions_in_f32_are_rounded_once(
    dtype: torch.dtype, target: str, layout: str, *, has_image: bool
) -> None:
    """Also their gradients, of the weight, the bias and perhaps the image."""
    torch.manual_seed(0)
    facts = replace(
        target_facts(target),
        convolutions=ConvolutionFacts((), (), 8, 1 << 25, widened=("bf16", "f16")),
    )
    x, weight, bias = torch.randn(2, 6, 9, 8), torch.randn(10, 6, 3, 3) / 8, torch.randn(10)
    args = [a.to(dtype) for a in (x.to(memory_format=FORMATS[layout]), weight, bias)]

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.relu(functional.conv2d(x, weight, bias, stride=2, padding=1))

    def gradients(x: Tensor, weight: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        mask = [has_image, True, True]
        found = torch.ops.aten.convolution_backward(
            *(upstream, x, weight, [10], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, mask)
        )
        return tuple(gradient for gradient in found if gradient is not None)

    counts = Counts()
    ours, _ = run(facts, counts, layer, *args)
    exact = layer(*(a.double() for a in args))
    assert ours.dtype is dtype
    assert (ours.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
    assert ours.stride() == layer(*args).stride()
    upstream = torch.randn(ours.shape).to(dtype)
    found, _ = run(facts, counts, gradients, *args[:2], upstream)
    for one, other in zip(
        found, gradients(*(a.double() for a in (*args[:2], upstream))), strict=True
    ):
        error = (one.double() - other).abs().max()
        assert error <= torch.finfo(dtype).eps * other.abs().max()
    assert counts.externs == ["aten.convolution.default", "aten.convolution_backward.default"]
