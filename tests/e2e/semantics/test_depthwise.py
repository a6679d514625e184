"""Depthwise convolutions by kernels, as a farm compiles them: frozen models and others."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.targets import target_facts
from tests.support.like_eager import compiled, numbers

CONVOLUTION = "aten.convolution.default"


@pytest.fixture
def programs(monkeypatch):
    """The programs that this process receives from the farm."""
    found = []
    check = FarmClient.checked

    def noted(self, *args):
        found.append(check(self, *args))
        return found[-1]

    monkeypatch.setattr(FarmClient, "checked", noted)
    return found


class Blocks(nn.Module):
    """An inverted bottleneck with a residual, and a block with a large window."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Conv2d(12, 40, 1)
        self.first = nn.Conv2d(40, 40, 3, stride=2, padding=1, groups=40, bias=False)
        self.norm = nn.BatchNorm2d(40)
        self.norm.running_mean.normal_()
        self.second = nn.Conv2d(40, 40, 7, padding=3, groups=40)
        self.narrow = nn.Conv2d(40, 16, 1)
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, x):
        found = F.hardswish(self.norm(self.first(F.relu(self.wide(x)))))
        return self.narrow(found + self.second(found))


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "frozen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_blocks_have_the_errors_of_rounding(dtype, freezing, programs):
    model = Blocks().to(dtype)
    x = numbers(2, 12, 15, 22, dtype=dtype)
    exact = copy.deepcopy(model).double()(x.double())
    fast = torch.compile(
        model, backend="kernelfarm", options={"strict": True, "freezing": freezing}
    )
    with torch.no_grad():
        found = fast(x)
    unit = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}[dtype]
    assert (found.double() - exact).abs().max() <= unit * exact.abs().max()
    (program,) = programs
    facts = target_facts(host_cpu_target())
    # Without facts about convolutions of one pixel, these are the framework's.
    if None not in (facts.depthwise, facts.convolutions) and dtype is torch.float32:
        assert CONVOLUTION not in [s.op for s in program.plan.steps if isinstance(s, ExternCall)]


def test_a_varying_number_of_images_needs_one_program(programs):
    model = Blocks()
    fast = compiled(model)
    with torch.no_grad():
        for images in (2, 5, 3):
            x = numbers(images, 12, 9, 14)
            torch._dynamo.mark_dynamic(x, 0)
            exact = copy.deepcopy(model).double()(x.double())
            assert (fast(x).double() - exact).abs().max() <= 2.0**-20 * exact.abs().max()
    assert len(programs) == 1


def test_two_threads_give_the_bits_of_one():
    model, x = Blocks(), numbers(3, 12, 30, 30)
    fast, before = compiled(model), torch.get_num_threads()
    results = []
    try:
        with torch.no_grad():
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results.append(fast(x))
    finally:
        torch.set_num_threads(before)
    if target_facts(host_cpu_target()).depthwise is None:  # the framework promises no equal bits
        torch.testing.assert_close(*results)
    else:
        assert torch.equal(*results)


def test_gradients_are_those_of_eager():
    layer = nn.Conv2d(16, 16, 3, padding=1, groups=16)
    other = copy.deepcopy(layer)
    x = numbers(2, 16, 9, 9).to(memory_format=torch.channels_last)
    for each, function in ((layer, layer), (other, compiled(other))):
        F.hardswish(function(x)).sum().backward()
        assert each.weight.grad is not None
    torch.testing.assert_close(other.weight.grad, layer.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.bias.grad, layer.bias.grad, rtol=1e-4, atol=1e-4)
