"""Gradients: forward and backward graphs of the farm, compared with eager training."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.checkpoint import checkpoint

from tests.e2e.semantics.training_models import STEPS, Batch, Transformer, sentences
from tests.support.like_eager import assert_same, compiled, numbers


def convnet() -> nn.Module:
    """Convolutions with BatchNorm that classify images of 12 x 12."""
    first = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8, 5))


def images(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 5, (4,), generator=generator)
    return torch.randn(4, 3, 12, 12, generator=generator), labels


def assert_trains_like_eager(
    model: nn.Module,
    batches: Callable[[int], Batch],
    *,
    steps: int = STEPS,
    rtol: float = 1e-4,
    **options: bool,
) -> None:
    """Compares losses, all gradients of each step, and the final state with eager."""
    ours = copy.deepcopy(model)
    fast = compiled(ours, **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9) for m in (model, ours)]
    for step in range(steps):
        x, labels = batches(step)
        losses = []
        for network, optimizer in zip((model, fast), optimizers, strict=True):
            torch.manual_seed(step)
            loss = F.cross_entropy(network(x), labels)
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=rtol, atol=rtol)
        for (name, theirs), mine in zip(model.named_parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(
                mine.grad, theirs.grad, rtol=rtol, atol=rtol, msg=lambda m, n=name: f"{n}: {m}"
            )
        for optimizer in optimizers:
            optimizer.step()
    assert_same(ours.state_dict(), model.state_dict(), rtol=10 * rtol)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_transformer_trains_like_eager(dropout, sent):
    assert_trains_like_eager(Transformer(dropout), sentences, fallback_random=dropout > 0)
    assert len(sent) == 2  # forward and backward


def test_a_convnet_with_batch_norm_trains_like_eager(sent):
    assert_trains_like_eager(convnet(), images, rtol=1e-3)
    assert len(sent) == 2


def test_a_channels_last_convnet_trains_like_eager():
    def batches(step: int) -> Batch:
        x, labels = images(step)
        return x.to(memory_format=torch.channels_last), labels

    model = convnet().to(memory_format=torch.channels_last)
    assert_trains_like_eager(model, batches, steps=3, rtol=1e-3)


def test_batches_of_any_size_train_with_one_pair_of_graphs(sent):
    def batches(step: int) -> Batch:
        return numbers(4 + step, 6, seed=step), torch.arange(4 + step) % 5

    layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)
    assert_trains_like_eager(nn.Sequential(*layers), batches, steps=5, dynamic=True)
    assert len(sent) == 2


def test_without_gradients_one_graph_is_compiled(sent):
    model = Transformer()
    with torch.no_grad():
        assert_same(compiled(model)(sentences(0)[0]), model(sentences(0)[0]), rtol=1e-4)
    assert len(sent) == 1


def gradient(function: Callable[[torch.Tensor], torch.Tensor], seed: int = 0) -> torch.Tensor:
    """The gradient of a weighted sum of the function's result, for the same input each time."""
    x = numbers(6, 6, seed=seed).requires_grad_()
    result = function(x)
    (result * numbers(*result.shape, seed=9)).sum().backward()
    assert x.grad is not None
    return x.grad


OPERATORS = {
    "softmax": lambda x: F.softmax(x, -1),
    "trace": lambda x: x.trace() * x[:2, :3].diagonal(),
    "log softmax": lambda x: F.log_softmax(x, 0),
    "maximum": lambda x: x.max(0).values,
    "product": lambda x: x.prod(1),
    "running sum": lambda x: torch.cat([x, x * 2]).cumsum(0),
    "pooling": lambda x: F.max_pool2d(x[None], 2),
    "index with repetition": lambda x: x[:, [0, 2, 2]],
    "activations": lambda x: F.gelu(x) * F.elu(x),
    "deviation and norm": lambda x: x.std(0) + x.norm(),
    "choice": lambda x: torch.where(x > 0, x, x * 2).amax(1),
    "sort": lambda x: x.sort(0).values,
    "largest": lambda x: x.topk(3, 1).values * x.kthvalue(2, 1, keepdim=True).values,
    "median": lambda x: x.median(0).values + x.nanmedian(1).values.sum(),
    "quantile": lambda x: x.quantile(0.3, 1),
    "gather": lambda x: torch.gather(x, 1, torch.zeros(6, 2, dtype=torch.long)),
    "interpolation": lambda x: F.interpolate(x[None], scale_factor=2.0),
    "a function used twice": lambda x: torch.tanh(torch.tanh(x)) + torch.tanh(x),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_operators_are_eager_s(name):
    function = OPERATORS[name]
    torch.testing.assert_close(gradient(compiled(function)), gradient(function))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_layer_norm_and_attention_have_gradients_near_eager_s(dtype):
    model = Transformer().to(dtype)
    ours = copy.deepcopy(model)
    words, labels = sentences(0)
    for network, call in ((model, model), (ours, compiled(ours))):
        F.cross_entropy(call(words).float(), labels).backward()
        assert all(p.grad is not None for p in network.parameters())
    wide = copy.deepcopy(model).double()
    wide.zero_grad()
    F.cross_entropy(wide(words), labels).backward()
    errors = [
        max(
            float((mine.grad.double() - exact.grad).abs().max() / exact.grad.abs().max())
            for mine, exact in zip(network.parameters(), wide.parameters(), strict=True)
        )
        for network in (model, ours)
    ]
    assert errors[1] <= 1.5 * errors[0]


def test_a_compiled_function_may_be_used_twice_in_one_graph_of_gradients():
    fast = compiled(lambda x: torch.tanh(x) * 2)
    torch.testing.assert_close(
        gradient(lambda x: fast(fast(x)) + fast(x)),
        gradient(lambda x: torch.tanh(torch.tanh(x) * 2) * 2 + torch.tanh(x) * 2),
    )


def test_a_graph_that_is_kept_gives_its_gradients_again():
    x = numbers(5).requires_grad_()
    loss = compiled(lambda x: (x.sin() * x).sum())(x)
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once)


def test_values_that_are_computed_again_in_the_backward_pass_give_eager_s_gradients():
    layers = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))

    def function(x):
        return checkpoint(layers, x, use_reentrant=False)

    torch.testing.assert_close(gradient(compiled(function)), gradient(function))


def test_gradients_flow_through_values_that_change_in_place():
    def function(x):
        y = x * 2
        y.add_(1)
        y[0].mul_(3)
        return y

    torch.testing.assert_close(gradient(compiled(function)), gradient(function))


def test_a_transformer_trains_under_autocast():
    eager = Transformer()
    ours = copy.deepcopy(eager)
    words, labels = sentences(0)
    results = []
    for model, call in ((eager, eager), (ours, compiled(ours))):
        with torch.autocast("cpu", torch.bfloat16):
            result = call(words)
        F.cross_entropy(result.float(), labels).backward()
        results.append((result.detach(), [p.grad for p in model.parameters()]))
    # bfloat16 rounds to 2^-8; fused operators round elsewhere than eager.
    assert_same(results[1], results[0], rtol=5e-2)
    assert results[1][0].dtype is torch.bfloat16
