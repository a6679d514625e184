"""Graph breaks, numbers read from tensors, control flow, and random numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.programs.eager import KernelfarmWarning
from tests.support.like_eager import assert_like_eager, assert_same, compiled


def test_parts_around_a_graph_break_are_compiled(sent):
    def function(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin() + 1

    assert_like_eager(function, lambda: (torch.arange(6.0),))
    assert len(sent) == 2


def test_parts_around_item_are_compiled(sent):
    def function(x):
        y = x * 2
        total = y.sum().item()
        return y.sin() * total, total

    assert_like_eager(function, lambda: (torch.arange(6.0),))
    assert len(sent) == 2


def test_an_item_may_be_an_index():
    assert_like_eager(lambda x, i: x[i.item()] * 2, lambda: (torch.arange(6.0), torch.tensor(2)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_on_data_are_like_eager(sign):
    def function(x):
        if x.sum() > 0:
            return x.relu() * 2
        return x.exp() - 1

    assert_like_eager(function, lambda: (torch.arange(1.0, 6.0) * sign,))


def test_loops_that_end_by_data_are_like_eager():
    def function(x, limit):
        for step in range(10):
            x = x * 2 + step
            if x.max() > limit:
                break
        return x

    assert_like_eager(function, lambda: (torch.arange(6.0), 100))


def test_results_whose_size_depends_on_data_are_like_eager():
    signed = torch.arange(-3.0, 6.0)
    assert_like_eager(lambda x: x[x > 0].sum() * 2 + x, lambda: (signed.clone(),))
    assert_like_eager(lambda x: (x * 2).nonzero(), lambda: (signed.clone(),))
    assert_like_eager(lambda x: torch.unique(x * 2) + 1, lambda: (torch.tensor([1.0, 2, 2, 3]),))


def test_python_generators_are_like_eager():
    def function(count, x):
        def parts():
            for step in range(count):
                yield x * step

        return sum(parts())

    assert_like_eager(function, lambda: (4, torch.arange(3.0)))


@pytest.mark.parametrize("option", ["capture_scalar_outputs", "capture_dynamic_output_shape_ops"])
def test_graphs_with_sizes_that_depend_on_data_run_eager_with_the_reason(option):
    def function(x, index):
        count = index.item() if option == "capture_scalar_outputs" else (x > 0).nonzero().shape[0]
        return x * 2 + count

    x, index = torch.arange(-2.0, 4.0), torch.tensor(3)
    fast = torch.compile(function, backend="kernelfarm")
    with (
        torch._dynamo.config.patch(**{option: True}),
        pytest.warns(KernelfarmWarning, match="depends on data"),
    ):
        assert_same(fast(x, index), function(x, index))


def test_random_operators_keep_eager_s_stream_if_asked_to():
    """They become extern steps in eager's order, so that a seed gives eager's numbers."""

    def function(x):
        first, second = torch.rand(4), torch.randn(4)
        kept = F.dropout(x, 0.5)
        flags = torch.bernoulli(torch.full((4,), 0.5))
        whole = torch.randint(0, 10, (4,))
        drawn = x.clone().uniform_(), torch.normal(x, 1.0), torch.randperm(5)
        return first + second + kept, flags, whole, torch.rand_like(x), *drawn

    assert_like_eager(function, lambda: (torch.arange(4.0),), fallback_random=True)


def test_random_operators_keep_their_order_whatever_is_fused():
    def function(x):
        first = torch.rand(4) * x
        second = torch.rand(4)
        return second - first, first.sum() + second

    assert_like_eager(function, lambda: (torch.arange(4.0),), fallback_random=True)


def test_the_mask_of_dropout_is_the_same_in_both_passes():
    x = torch.ones(200, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5) * 3)(x)
    y.sum().backward()
    assert 0 < int((y == 0).sum()) < 200
    assert_same(x.grad, y.detach())


def test_generators_of_one_s_own_are_like_eager():
    generator = torch.Generator()

    def function(x):
        return x + torch.rand(4, generator=generator)

    generator.manual_seed(3)
    expected = function(torch.arange(4.0))
    generator.manual_seed(3)
    assert_same(compiled(function)(torch.arange(4.0)), expected)
