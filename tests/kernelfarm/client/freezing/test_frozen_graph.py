"""What is computed once from the parameters of a model, and what its calls compute."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernelfarm.client.freezing.fold_norms import scaled_weight
from kernelfarm.client.freezing.pack_weights import packed_convolution_weight
from kernelfarm.client.freezing.values import LARGE_BYTES
from kernelfarm.client.freezing.widen_convolutions import in_f32
from kernelfarm.ir.graph_ir import Constant
from tests.support.frozen_calls import FrozenCalls, is_packable

CONVOLUTION = "mkldnn._convolution_pointwise.default"
SUM = "mkldnn._convolution_pointwise.binary"
WINOGRAD = "kernelfarm.winograd_convolution.default"
LINEAR = "mkldnn._linear_pointwise.default"


LIBRARY, KERNELS = "cpu:x86-64-v3", "cpu:x86-64-v3-amd"
"""Targets whose convolutions of one pixel are the library's, and those of kernels."""
DOTS = "cpu:x86-64-v4-bf16-amd"


class Images(nn.Module):
    """Convolutions with norms and activations, a residual, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, bias=False), _norm(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), _norm(16, affine=False))
        self.third = nn.Sequential(nn.Conv2d(16, 16, 5, groups=8), _norm(16), nn.Hardswish())
        self.last = nn.Conv2d(16, 8, 1)
        self.wide, self.narrow = nn.Linear(8 * 11 * 11, 64), nn.Linear(64, 70, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: (n, 3, 32, 32) -> (n, 70), (n, 8, 11, 11)."""
        x = self.first(x)
        x = functional.relu(x + self.second(x))
        image = functional.leaky_relu(self.last(self.third(x)), 0.2)
        return self.narrow(functional.gelu(self.wide(image.flatten(1)))), image


def _norm(channels: int, **options: bool) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, **options)
    norm.running_mean.normal_(std=0.5)
    norm.running_var.uniform_(0.2, 3)
    if norm.affine:
        norm.weight.data.uniform_(-2, 2)
        norm.bias.data.normal_()
    return norm


class Bottleneck(nn.Module):
    """Two windows of one pixel around one of nine, and a residual, which a convolution makes."""

    def __init__(self, *, is_strided: bool) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(64, 16, 1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1, stride=1 + is_strided)
        self.wide = nn.Conv2d(16, 64, 1)
        self.beside = nn.Conv2d(64, 64, 1, stride=1 + is_strided)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (n, 64, h, w) -> (n, 64, h, w), or half of h and w."""
        found = self.wide(functional.relu(self.middle(functional.relu(self.narrow(x)))))
        return functional.relu(found + self.beside(x))


PLAIN = "aten.convolution.default"


@pytest.mark.parametrize(
    ("is_strided", "side", "expected"),
    [
        # Small ones all are kernels'.
        (False, 8, [PLAIN, WINOGRAD, PLAIN, PLAIN]),
        # Of large ones, kernels compute the one that adds the other one.
        (False, 200, [CONVOLUTION, CONVOLUTION, PLAIN, CONVOLUTION]),
        (True, 400, [CONVOLUTION, CONVOLUTION, PLAIN, CONVOLUTION]),
    ],
)
def test_convolutions_that_kernels_compute_keep_plain_weights(
    is_strided: bool, side: int, expected: list[str]
) -> None:
    torch.manual_seed(0)
    model, x = Bottleneck(is_strided=is_strided).eval(), torch.randn(1, 64, side, side)
    calls = FrozenCalls(model, KERNELS)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-4)
    assert [target for target in calls.targets if "convolution" in target] == expected


def test_a_varying_number_of_images_takes_the_same_steps_as_a_fixed_one() -> None:
    """Weights are packed for the number of the trace: for none, oneDNN takes other kernels.

    Of a fixed number of images, those of f32 would be computed by Winograd's algorithm.
    """
    torch.manual_seed(0)
    model = nn.Sequential(Bottleneck(is_strided=False), Bottleneck(is_strided=True)).eval()
    model = model.bfloat16()
    fixed, varying = FrozenCalls(model, DOTS), FrozenCalls(model, DOTS, dynamic=None)
    fixed(torch.randn(3, 64, 20, 20).bfloat16())
    for count in (3, 2, 9):
        x = torch.randn(count, 64, 20, 20).bfloat16()
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(varying(x), model(x), rtol=2e-2, atol=2e-2)
    assert len(varying.frozen) == 1
    assert [t for t in varying.targets if "convolution" in t] == [
        t for t in fixed.targets if "convolution" in t
    ]
    (frozen,) = varying.frozen
    assert frozen is not None
    packings = [n for n in frozen.fold.graph.nodes if n.target is packed_convolution_weight]
    sizes = [node.args[2][-1] for node in packings]
    assert len(sizes) == 3
    assert all(found[0] == 3 for found in sizes)


def test_norms_are_folded_and_activations_and_sums_are_steps_of_the_library() -> None:
    torch.manual_seed(0)
    model, x = Images().eval(), torch.randn(2, 3, 32, 32)
    calls = FrozenCalls(model, LIBRARY)
    found, exact = calls(x), copy.deepcopy(model).double()(x.double())
    for ours, eager, wide in zip(found, model(x), exact, strict=True):
        assert ours.stride() == eager.stride()
        assert (ours - wide).abs().max() < 4e-6 * wide.abs().max()  # f32 sums of 968 products
    used = [target for target in calls.targets if "clone" not in target]
    expected = [CONVOLUTION, SUM, CONVOLUTION, CONVOLUTION, "aten.view.default", LINEAR, LINEAR]
    assert used == expected


@pytest.mark.parametrize("activation", ["relu6", "silu", "sigmoid", "tanh", "hardsigmoid", "gelu"])
def test_each_activation_of_the_library_is_the_one_of_the_model(activation: str) -> None:
    torch.manual_seed(0)
    layer, function = nn.Conv2d(4, 6, 3), getattr(functional, activation)
    calls, x = FrozenCalls(lambda x: function(layer(x))), torch.randn(2, 4, 9, 9) * 4
    torch.testing.assert_close(calls(x), function(layer(x)), atol=2e-6, rtol=2e-6)
    assert CONVOLUTION in calls.targets
    assert not any(activation in target for target in calls.targets)


def test_under_autocast_a_weight_is_scaled_before_it_is_rounded() -> None:
    torch.manual_seed(0)
    layer, norm = nn.Conv2d(4, 8, 3, bias=False), _norm(8)
    model = nn.Sequential(layer, norm).eval()
    calls, x = FrozenCalls(model, LIBRARY), torch.randn(2, 4, 9, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, eager = calls(x), model(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, eager, atol=0.02, rtol=0.02)
    convolution = CONVOLUTION if is_packable(torch.bfloat16) else "aten.convolution.default"
    assert calls.targets[:2] == ["aten._to_copy.default", convolution]
    assert calls.targets.count("aten._to_copy.default") == 1  # of the image, not of the weight
    once = calls.frozen[-1].fold.graph.find_nodes(op="call_function", target=scaled_weight)
    assert [node.args[0].op for node in once] == ["placeholder"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_weights_of_convolutions_in_f32_are_converted_once(
    dtype: torch.dtype, *, has_bias: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 8, 3, bias=has_bias).to(dtype)
    calls, x = FrozenCalls(lambda x: functional.relu(layer(x)), KERNELS), torch.randn(2, 4, 9, 9)
    x = x.to(dtype)
    found, exact = calls(x), functional.relu(copy.deepcopy(layer).double()(x.double()))
    assert found.dtype is dtype
    assert (found.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
    used = [name for name in calls.targets if "copy" in name or "convolution" in name]
    assert used == ["aten._to_copy.default", CONVOLUTION, "aten._to_copy.default"]
    once = calls.frozen[-1].fold.graph.find_nodes(op="call_function", target=in_f32)
    assert len(once) == 1 + has_bias


def test_what_parameters_alone_determine_is_computed_once() -> None:
    table, index = nn.Parameter(torch.randn(50, 4)), torch.arange(6).reshape(2, 3)
    model = nn.Module()
    model.table = table
    model.register_buffer("index", index)

    def call(x: torch.Tensor) -> torch.Tensor:
        bias = functional.embedding(model.index, model.table).permute(2, 0, 1).exp()
        return x + bias * math.pi + model.table.t()[:, :1, None]

    calls, x = FrozenCalls(call), torch.randn(4, 2, 3)
    torch.testing.assert_close(calls(x), call(x))
    targets = calls.targets
    assert not {"aten.embedding.default", "aten.exp.default", "aten.mul.Tensor"} & {*targets}
    assert "aten.t.default" in targets  # a view costs nothing, and would hold memory


def test_a_large_result_of_small_parameters_is_computed_in_each_call() -> None:
    rows = nn.Parameter(torch.ones(1, 4))
    extent = LARGE_BYTES // 16 + 1
    calls = FrozenCalls(lambda x: (rows.expand(extent, 4) + 1).amax() + x)
    torch.testing.assert_close(calls(torch.zeros(2)), torch.full((2,), 2.0))
    assert calls.frozen == [None]


def test_a_returned_constant_is_a_copy_that_its_caller_may_change() -> None:
    weight = nn.Parameter(torch.ones(8))
    calls, x = FrozenCalls(lambda x: (x + 1, weight.exp())), torch.zeros(2)
    for _ in range(2):
        _, made = calls(x)
        torch.testing.assert_close(made, weight.exp())
        made.zero_()


def test_equal_models_with_other_weights_are_one_graph() -> None:
    x, graphs = torch.randn(1, 3, 32, 32), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        calls = FrozenCalls(Images().eval())
        calls(x)
        graphs += calls.captured
    assert graphs[0] == graphs[1]
    kinds = [source.kind for source in graphs[0].inputs]
    assert not any(isinstance(kind, Constant) for kind in kinds)  # no value leaves the process
