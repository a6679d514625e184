"""Inputs that change, and memory that inputs and outputs share."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from kernelfarm.client.runtime import arena
from tests.support.like_eager import assert_like_eager, assert_same, compiled, numbers


def test_a_cache_is_written_at_an_index():
    def function(cache, x, position):
        cache[:, position] = x
        return (cache * 2).sum(-1)

    assert_like_eager(function, lambda: (torch.zeros(2, 8, 4), numbers(2, 1, 4), torch.tensor([3])))


def test_a_cache_is_written_by_index_copy_and_by_slices():
    def function(cache, other, x, position):
        cache.index_copy_(1, position, x)
        other[:, 2:3].copy_(x)
        return cache @ x[0, 0] + other.sum(-1)

    def make():
        caches = torch.zeros(2, 8, 4), torch.zeros(2, 8, 4)
        return *caches, numbers(2, 1, 4), torch.tensor([3])

    assert_like_eager(function, make)


def test_running_statistics_of_a_norm_in_training_follow_eager():
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    ours = copy.deepcopy(eager)
    fast = compiled(ours)
    for step in range(3):
        x = numbers(2, 3, 8, 8, seed=step)
        with torch.no_grad():
            assert_same(fast(x), eager(x), rtol=1e-5)
        assert_same(ours.state_dict(), eager.state_dict(), rtol=1e-5)


def test_buffers_of_a_module_change_at_each_call():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(0))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.count += 1
            self.mean.lerp_(x.mean(0), 0.1)
            return x - self.mean / self.count

    eager, ours = Average(), Average()
    fast = compiled(ours)
    for step in range(3):
        x = numbers(3, 4, seed=step)
        assert_same(fast(x), eager(x))
        assert_same(ours.state_dict(), eager.state_dict())


def test_views_of_inputs_are_views_of_inputs():
    def function(x):
        views = x[1:3], x.t(), x.view(-1), x[0, 0], x.diagonal(), x.expand(2, 4, 6)
        return *views, x.unfold(0, 2, 1), x.view(torch.int32), x * 2

    assert_like_eager(function, lambda: (numbers(4, 6),))


def test_outputs_that_alias_each_other_do_so():
    def function(x):
        y = x * 2
        return y, y.t(), y[1], y

    assert_like_eager(function, lambda: (numbers(4, 6),))


def test_views_of_a_value_that_is_no_output_share_its_memory(sent):
    def function(x):
        y = x * 2
        return y[1], y[2:], y.sum()

    assert_like_eager(function, lambda: (numbers(4, 6),))
    assert [str(t.shape) for t in sent[0].output_types] == ["(4, 6)", "()"]


def test_parts_of_a_product_are_views_of_it_and_no_copies(sent):
    assert_like_eager(
        lambda x, weight: (x @ weight).chunk(3, -1), lambda: (numbers(4, 6), numbers(6, 9))
    )
    assert len(sent[0].outputs) == 1


def test_outputs_that_alias_each_other_do_so_at_every_size(sent):
    def function(x):
        y = x * 2
        return y[1:], y.t()

    fast = compiled(function, dynamic=True)
    for rows in (4, 9):
        ours, theirs = fast(numbers(rows, 6)), function(numbers(rows, 6))
        assert_same(ours, theirs)
        ours[0].fill_(3)
        assert bool((ours[1][:, 1:] == 3).all())
    assert len(sent) == 1


def test_a_write_into_an_output_shows_in_its_aliases_alone():
    def function(x):
        y = x * 2
        return y, y.t(), x * 2 + 1, x * 2

    ours, theirs = compiled(function)(numbers(4, 6)), function(numbers(4, 6))
    for results in (ours, theirs):
        results[0].fill_(7)
    assert_same(ours, theirs)


def test_an_input_may_be_passed_twice():
    def twice() -> tuple[torch.Tensor, ...]:
        x = numbers(4, 6)
        return x, x

    def function(a, b):
        a.add_(1)
        return a * b, b.sum()

    assert_like_eager(lambda a, b: (a + b, a * 2), twice)
    assert_like_eager(function, twice)


def test_inputs_may_share_memory():
    def function(a, b):
        a.mul_(2)
        return a.sum() + b.sum(), b * 3

    def whole_and_part() -> tuple[torch.Tensor, ...]:
        x = numbers(4, 6)
        return x, x[1:3]

    def overlapping_parts() -> tuple[torch.Tensor, ...]:
        x = numbers(4, 6)
        return x[:2], x[1:3]

    def columns() -> tuple[torch.Tensor, ...]:
        x = numbers(4, 6)
        return x, x[:, 1:3]

    assert_like_eager(function, whole_and_part)
    assert_like_eager(function, overlapping_parts)
    assert_like_eager(function, columns)
    assert_like_eager(lambda a, b: (a + b.sum(), b), whole_and_part)


def test_writes_through_views_reach_the_whole():
    def into_input(x):
        part = x[1:3]
        part.add_(1)
        x.t().mul_(2)
        return x.sum(0), part

    def into_value(x):
        y = x * 1
        y[0] = 5
        y.view(-1)[3:7].mul_(2)
        return y

    assert_like_eager(into_input, lambda: (numbers(4, 6),))
    assert_like_eager(into_value, lambda: (numbers(4, 6),))


def test_returned_inputs_are_the_inputs():
    def changed(x, y):
        x.add_(y)
        return x, x.view(2, 2), y

    assert_like_eager(lambda x, y: (x, y + 1, x, y), lambda: (numbers(4), numbers(4, seed=1)))
    assert_like_eager(changed, lambda: (numbers(4), numbers(4, seed=1)))


def test_inputs_change_their_shape_in_place():
    def function(x):
        x.t_()
        x.unsqueeze_(0)
        return x * 2

    assert_like_eager(function, lambda: (numbers(4, 5),))


def test_inputs_in_any_layout_are_written():
    def function(x, y):
        x.copy_(y)
        y.zero_()
        return x + 1

    assert_like_eager(function, lambda: (numbers(8, 6)[::2].t(), numbers(6, 4, seed=1)))


def test_two_inputs_exchange_their_values():
    def function(x, y):
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    assert_like_eager(function, lambda: (numbers(5), numbers(5, seed=1)))


def test_integers_and_flags_are_written():
    def function(mask, index):
        mask.logical_not_()
        index += 1
        index[0] = 7
        return mask & (index > 2), index // 2

    make = lambda: (torch.tensor([True, False, True]), torch.tensor([1, 2, 3]))  # noqa: E731
    assert_like_eager(function, make)


def test_parts_of_an_input_are_written_in_order():
    def function(x):
        x[1:] = x[:-1].clone()
        x[:2] += x[2:4]
        return x

    assert_like_eager(function, lambda: (numbers(6, 3),))


def test_windows_on_the_memory_of_a_computed_value_are_read():
    def function(x):
        y = x * 2
        return y.as_strided((3, 4), (1, 2)) + 1, y[1:].as_strided((2, 3), (3, 1), 4) + 1

    assert_like_eager(function, lambda: (numbers(4, 6),))


def test_a_cache_that_is_updated_at_a_position_is_not_copied(sent, monkeypatch):
    taken = []
    take = arena.take

    def noted(blocks, device, size_bytes):
        taken.append(size_bytes)
        return take(blocks, device, size_bytes)

    monkeypatch.setattr(arena, "take", noted)

    def function(keys, values, k, v, position):
        keys.index_copy_(2, position, k.sin())
        values.index_copy_(2, position, v)
        return keys[:, :, 0] @ v[0, 0].t()

    def make():
        caches = numbers(1, 2, 512, 16), numbers(1, 2, 512, 16, seed=1)
        new = numbers(1, 2, 1, 16, seed=2), numbers(1, 2, 1, 16, seed=3)
        return *caches, *new, torch.tensor([9])

    assert_like_eager(function, make)
    cache_bytes = 2 * 512 * 16 * 4
    assert sum(taken) < cache_bytes / 8
    assert len(sent[0].updates) == 2


def test_an_optimizer_step_writes_its_parameters():
    def step(weight, momentum, grad):
        momentum.mul_(0.9).add_(grad)
        weight.add_(momentum, alpha=-0.1)

    assert_like_eager(step, lambda: (numbers(40), numbers(40, seed=1), numbers(40, seed=2)))


def test_a_changed_input_that_is_returned_is_that_input_and_its_clone_is_not():
    def function(x, y):
        before = x.clone()
        x.mul_(2).add_(y)
        return x, before, x.clone(), x + before

    assert_like_eager(function, lambda: (numbers(4, 6), numbers(4, 6, seed=1)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", ["row", "slot"])
def test_views_of_a_changed_input_at_an_offset_are_its_views(write, dynamic):
    def function(cache):
        if write == "row":
            cache[0].mul_(-1)
        else:
            cache.flatten(0, 1)[1] = 5.0
        return cache.flatten(0, 1), cache[1]

    fast = compiled(function, dynamic=dynamic)
    both = numbers(2, 4, 3, 2)
    cache = both[1]
    found = fast(cache)
    assert_same(found, (cache.flatten(0, 1), cache[1]))
    assert [view.data_ptr() for view in found] == [cache.data_ptr(), cache[1].data_ptr()]
    expected = numbers(2, 4, 3, 2)
    function(expected[1])
    assert_same((both,), (expected,))


def test_a_changed_input_serves_every_size():
    def function(cache, x, position):
        cache[:, position] = x
        return cache.sum(-1)

    fast = compiled(function, dynamic=True)
    for length in (8, 16, 24):
        ours, theirs = torch.zeros(2, length, 4), torch.zeros(2, length, 4)
        x, position = numbers(2, 3, 4), torch.tensor([1, 5, length - 1])
        assert_same((fast(ours, x, position), ours), (function(theirs, x, position), theirs))
