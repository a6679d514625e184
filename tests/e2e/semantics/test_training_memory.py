"""The bytes of training steps, and what autograd and users may do with saved tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from kernelfarm.client.runtime import arena
from tests.support.allocations import peak_of
from tests.support.like_eager import assert_like_eager, compiled, numbers

MIB = 1 << 20
WIDTH = 512
"""A weight, and an activation of as many rows, has 1 MiB."""


def layers(count: int, width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for _ in range(count):
        found += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*found)


def warmed(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The compiled model after one training step, without an arena."""
    fast = compiled(model)
    fast(x).sum().backward()
    model.zero_grad()
    arena.release()
    return fast


def test_a_forward_call_copies_no_weight():
    x = numbers(16, WIDTH)
    fast = warmed(layers(6), x)
    saved_bytes = 6 * 16 * WIDTH * 4
    assert peak_of(lambda: fast(x)) < 2 * saved_bytes < MIB


def test_a_backward_call_frees_saved_tensors_as_gradients_of_weights_come():
    count = 12
    x = numbers(WIDTH, WIDTH)
    fast = warmed(layers(count), x)
    # The activations of the forward call, or the gradients; never all of both.
    assert peak_of(lambda: fast(x).sum().backward()) < (count + 4) * MIB


class WideLoss(nn.Module):
    """A loss over wide logits, below layers whose gradients come when the logits are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(16, 256)
        self.head = nn.Linear(256, 8192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(x)).float()
        return (logits.log_softmax(-1) * logits.sigmoid()).mean()


def test_the_arena_does_not_keep_the_memory_of_gradients_that_ended():
    x = numbers(256, 256)
    model = WideLoss()
    fast = warmed(model, x)
    logits = 256 * 8192 * 4
    gradients = sum(p.numel() * 4 for p in model.parameters())
    activations = 16 * 256 * 256 * 4
    peak = peak_of(lambda: fast(x).backward())
    assert peak < max(gradients, 3 * logits) + activations + MIB


def normalized(norm: nn.Module) -> nn.Sequential:
    """Four convolutions with a norm and an activation.

    They have no bias: its gradient before a batch norm is zero, so that only rounding is left.
    """
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for _ in range(4):
        found += [nn.Conv2d(32, 32, 1, bias=False), copy.deepcopy(norm), nn.SiLU()]
    return nn.Sequential(*found)


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 32), nn.BatchNorm2d(32)], ids=["group", "batch"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_results_of_norms_are_not_saved(norm, layout):
    x = numbers(4, 32, 64, 64).contiguous(memory_format=layout)
    model = normalized(norm).to(memory_format=layout)
    theirs = copy.deepcopy(model)
    fast = compiled(model)
    fast(x).sin().mean().backward()
    theirs(x).sin().mean().backward()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)
    arena.release()
    image = x.numel() * 4
    # Of each layer the results of convolution and activation, and a temporary.
    assert peak_of(lambda: fast(x)) < 9.5 * image


def test_norms_of_images_of_varying_sizes_have_eager_s_gradients():
    model = normalized(nn.GroupNorm(4, 32))
    theirs = copy.deepcopy(model)
    fast = compiled(model, dynamic=True)
    for pixels in (16, 24):
        x = numbers(pixels // 8, 32, pixels, pixels + 1)
        for called in (fast, theirs):
            called(x).sin().mean().backward()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_a_retained_graph_gives_equal_gradients_again():
    x = numbers(64, WIDTH)
    model = layers(3)
    loss = compiled(model)(x).pow(2).sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for one, parameter in zip(first, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 2 * one)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_weight_that_was_changed_before_the_backward_call_is_an_error_as_in_eager(is_transposed):
    weight = nn.Parameter(numbers(32, 32))
    x = numbers(8, 32).requires_grad_()

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ (weight.t() if is_transposed else weight)

    for function in (product, compiled(product)):
        loss = function(x).sum()
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_hooks_may_keep_and_replace_saved_tensors():
    model, x = layers(3), numbers(64, WIDTH)
    theirs = copy.deepcopy(model)
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor.clone()

    fast = compiled(model)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = fast(x).pow(2).sum()
    before = [tensor.clone() for tensor in kept]
    loss.backward()
    theirs(x).pow(2).sum().backward()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
    for tensor, copied in zip(kept, before, strict=True):
        torch.testing.assert_close(tensor, copied, rtol=0, atol=0)


def test_returned_arguments_and_their_views_are_eager_s():
    def function(x, w):
        return x @ w.t(), w, w.t(), w[1:3], w.expand(2, *w.shape)

    assert_like_eager(function, lambda: (numbers(4, 6), numbers(5, 6, seed=1)), rtol=1e-5)


def test_a_returned_argument_that_is_written_has_the_new_elements():
    def function(x, w):
        old = w * 2
        w.add_(1)
        return x @ w.t(), w, w.t(), old

    assert_like_eager(function, lambda: (numbers(4, 6), numbers(5, 6, seed=1)), rtol=1e-5)


def test_gradients_that_are_passed_through_are_not_shared_with_the_caller():
    x, y = (numbers(4, 6, seed=n).requires_grad_() for n in range(2))
    gradient = numbers(4, 6, seed=2)
    before = gradient.clone()
    compiled(lambda x, y: x + y)(x, y).backward(gradient)
    x.grad.add_(1)
    torch.testing.assert_close(y.grad, before)
    torch.testing.assert_close(gradient, before)
