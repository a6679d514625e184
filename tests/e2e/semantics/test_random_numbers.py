"""Random numbers of the farm: seeds, masks, checkpoints and training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.checkpoint import checkpoint

from kernelfarm.client.compile_model import connect
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.ir.program_ir import DrawSeeds, Launch
from tests.e2e.semantics.training_models import STEPS, Transformer, sentences
from tests.support.like_eager import compiled, numbers


def seeded(function, *args, seed: int = 0):
    torch.manual_seed(seed)
    return function(*args)


def draw(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


def test_a_seed_gives_its_numbers_again_and_another_seed_others():
    fast = compiled(lambda x: x + torch.rand(64))
    x = torch.zeros(64)
    torch.testing.assert_close(seeded(fast, x), seeded(fast, x), rtol=0, atol=0)
    assert not torch.equal(seeded(fast, x), seeded(fast, x, seed=1))


def test_a_second_program_gives_the_numbers_of_the_first():
    def function(x):
        return torch.randn_like(x)

    first = seeded(compiled(function), torch.zeros(5, 7))
    torch._dynamo.reset()
    torch.testing.assert_close(seeded(compiled(function), torch.zeros(5, 7)), first)


def test_each_call_draws_afresh():
    fast = compiled(draw)
    assert not torch.equal(fast(torch.zeros(64)), fast(torch.zeros(64)))


def test_the_same_operator_twice_draws_twice():
    first, second = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))(torch.zeros(64))
    assert not torch.equal(first, second)


def test_numbers_do_not_depend_on_what_they_are_fused_with():
    alone = compiled(draw)
    fused = compiled(lambda x: (torch.rand_like(x) * 2 + x).sum(1))
    x = numbers(6, 50)
    torch.testing.assert_close(seeded(fused, x), (seeded(alone, x) * 2 + x).sum(1))


def test_numbers_follow_the_shape_not_the_strides():
    fast = compiled(draw)
    x = torch.zeros(3, 4, 5, 6)
    turned = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(seeded(fast, turned), seeded(fast, x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_tensors_of_few_elements_have_numbers(shape):
    result = compiled(lambda x: torch.rand_like(x) + x)(torch.zeros(shape))
    assert result.shape == shape
    assert bool(((result >= 0) & (result < 1)).all())


def test_one_program_serves_every_size(sent):
    fast = compiled(lambda x: F.dropout(x, 0.5), dynamic=True)
    for count in (50, 200, 333):
        x = torch.ones(count, 3)
        result = seeded(fast, x)
        torch.testing.assert_close(seeded(fast, x), result)
        assert 0 < int((result == 0).sum()) < result.numel()
    assert len(sent) == 1


def test_the_mask_of_dropout_is_the_same_in_both_passes():
    x = torch.ones(200, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5) * 3)(x)
    y.sum().backward()
    assert 0 < int((y == 0).sum()) < 200
    torch.testing.assert_close(x.grad, y.detach())


def drop_all_the_way(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(x, 0.5).exp(), 0.5)


def recomputed_gradient(function) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.ones(400, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def test_a_checkpoint_inside_the_graph_sees_its_masks_again():
    fast = compiled(lambda x: checkpoint(drop_all_the_way, x, use_reentrant=False))
    assert_masks_agree(*recomputed_gradient(fast))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_checkpoint_around_the_graph_sees_its_masks_again(is_reentrant):
    fast = compiled(drop_all_the_way)
    around = torch._dynamo.disable(
        lambda x: checkpoint(fast, x, use_reentrant=is_reentrant), recursive=False
    )
    assert_masks_agree(*recomputed_gradient(around))


def assert_masks_agree(y: torch.Tensor, gradient: torch.Tensor) -> None:
    """At 1, elements that both dropouts keep are 2 exp(2), with the slope 4 exp(2)."""
    kept_twice = (y - 2 * torch.exp(torch.tensor(2.0))).abs() < 1e-4
    assert 50 < int(kept_twice.sum()) < 150
    slope = 4 * torch.exp(torch.tensor(2.0))
    torch.testing.assert_close(gradient, torch.where(kept_twice, slope, 0.0))


def test_a_transformer_with_dropout_trains():
    torch.manual_seed(3)
    model = Transformer(0.2)
    fast = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    words, labels = sentences(0)
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(fast(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_training_draws_and_inference_does_not():
    model = Transformer(0.3)
    fast = compiled(model)
    words = sentences(0)[0][:3]
    with torch.no_grad():
        first, second = fast(words), fast(words)
        assert not torch.allclose(first, second)
        model.eval()
        torch.testing.assert_close(fast(words), fast(words))
        torch.testing.assert_close(fast(words), copy.deepcopy(model)(words), rtol=1e-4, atol=1e-5)


def test_dropout_an_addition_and_a_norm_are_one_kernel(sent):
    norm = nn.LayerNorm(64)

    def function(x, y):
        return norm(F.dropout(x, 0.1) + y)

    x, y = numbers(8, 64), numbers(8, 64, seed=1)
    with torch.no_grad():
        kept = seeded(compiled(lambda x: F.dropout(x, 0.1)), x)
        result = seeded(compiled(function), x, y)
        torch.testing.assert_close(result, norm(kept + y))
    with connect() as client:
        (program,) = client.compile(sent[-1], [device_support(x.device).target])
    kinds = [type(step) for step in program.plan.steps]
    assert kinds == [DrawSeeds, Launch]


def test_layers_of_one_shape_share_their_kernels(sent):
    def function(x):
        for _ in range(4):
            x = F.dropout(x, 0.1).softmax(-1) @ x
        return x

    with torch.no_grad():
        compiled(function)(numbers(16, 16))
    with connect() as client:
        (program,) = client.compile(sent[-1], [device_support(torch.device("cpu")).target])
    launches = [step for step in program.plan.steps if isinstance(step, Launch)]
    assert len(launches) == 4
    assert len(program.plan.kernel_names) == 1
