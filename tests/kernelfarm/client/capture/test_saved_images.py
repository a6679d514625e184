"""The layout of images that a training step saves for its gradients."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph, TensorType
from tests.support.traced_graphs import recording

GPU = "cuda:sm_90a"


class Stem(nn.Module):
    """Two convolutions with norm and activation, the maximum of windows, and a loss."""

    def __init__(self, *, is_viewed: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, groups=2)
        self.is_viewed = is_viewed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x, 3, 2, 1)
        x = self.second(x)
        if self.is_viewed:
            x = x.view(x.shape[0], -1, 2)
            x = torch.matmul(x, x.transpose(1, 2))
        return x.sin().mean()


def captured(
    model: nn.Module, dtype: torch.dtype, target: str | None, *, varies: bool = False
) -> tuple[Graph, Graph]:
    """The graphs of a training step whose gradients equal eager's."""
    torch.manual_seed(0)
    model = model.to(dtype).train()
    given = torch.randn(4, 3, 12, 12, dtype=dtype)
    if varies:
        torch._dynamo.mark_dynamic(given, 0)
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    fast = torch.compile(model, backend=recording(found, target=target))
    gradients = []
    for called in (model, fast):
        model.zero_grad()
        called(given).backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=1e-3)
    forward, backward = (one.graph for one in found)
    return forward, backward


def images(graph: Graph) -> list[TensorType]:
    """The arguments with several channels and pixels, without weights and the model's own image."""
    kinds = [source.kind for source in graph.inputs]
    return [
        kind
        for kind in kinds
        if isinstance(kind, TensorType) and kind.rank == 4 and str(kind.shape[1]) == "8"
        if not kind.shape[0].is_constant or kind.shape[0].constant == 4
    ]


def is_last(kind: TensorType) -> bool:
    assert kind.strides is not None
    return str(kind.strides[1]) == "1"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("varies", [False, True])
def test_images_of_16_bits_are_saved_channels_last(dtype: torch.dtype, varies: bool):
    forward, backward = captured(Stem(), dtype, GPU, varies=varies)
    assert bool(backward.symbols) is varies
    found = images(backward)
    assert len(found) == 5  # both convolutions, the activation, and windows with their positions
    assert all(map(is_last, found))
    # What the program returns is what the next one takes.
    returned = [kind for kind in forward.output_types if kind is not None and kind.rank == 4]
    assert [kind for kind in returned if is_last(kind)] == found


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        (torch.float32, GPU),  # not measured
        (torch.bfloat16, None),  # a device without programs
        (torch.bfloat16, "cpu:x86-64-v3"),
        (torch.bfloat16, "rocm:gfx942"),
    ],
)
def test_other_types_and_targets_keep_eagers_layout(dtype: torch.dtype, target: str | None):
    _, backward = captured(Stem(), dtype, target)
    assert images(backward)
    assert not any(map(is_last, images(backward)))


def test_what_the_gradient_views_keeps_its_layout():
    _, backward = captured(Stem(is_viewed=True), torch.bfloat16, GPU)
    assert [is_last(kind) for kind in images(backward)].count(True) == 4
    viewed = [source.kind for source in backward.inputs if "16, 2]" in str(source.kind)]
    assert not any(is_last(kind) for kind in viewed if isinstance(kind, TensorType))


class Flattened(torch.autograd.Function):
    """A square whose gradient views a product of what it saved in one axis."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (x * grad).view(-1).mul(2).view(grad.shape)


# Dynamo makes an instance of the class while it traces.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_no_image_changes_its_layout_if_the_gradients_could_not_run(caplog):
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Flattened.apply(self.first(x)).sin().mean()

    caplog.set_level(logging.DEBUG, logger="kernelfarm.client")
    forward, backward = captured(Squared(), torch.bfloat16, GPU)
    assert "saved images keep their layout: view" in caplog.text
    assert images(backward)
    assert not any(map(is_last, images(backward)))
    assert not any(node.op == "aten.clone.default" for node in forward.nodes)


def test_results_of_the_model_keep_their_layout():
    class WithImage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen = self.first(x)
            return seen, self.second(seen.relu()).mean()

    model = WithImage().to(torch.bfloat16)
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    fast = torch.compile(model, backend=recording(found, target=GPU))
    seen, loss = fast(torch.randn(4, 3, 12, 12, dtype=torch.bfloat16))
    loss.backward()
    assert seen.is_contiguous()
    forward, backward = (one.graph for one in found)
    assert not is_last(forward.output_types[0])
    assert images(backward)
