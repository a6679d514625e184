"""Convolutions in either layout: values and strides as in eager, whatever the plan prefers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.tracing import backend_around
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import ChannelsLastFacts, TargetFacts, target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.random_conv_nets import HEIGHT, WIDTH, RandomConvNet

_KINDS = ("dense", "strided", "few_channels", "depthwise", "grouped")
FORMATS = (torch.contiguous_format, torch.channels_last)


def facts_that_prefer(layout: str) -> TargetFacts:
    """Facts of this machine, with which plans have as many images as possible in one layout.

    Gradients keep theirs: PyTorch's own, channels last, write beyond their memory for some shapes.
    """
    rates = tuple((kind, 8.0) for kind in sorted(_KINDS))
    found = {
        "eager": None,
        "last": ChannelsLastFacts(wide_saves=rates, has_gradients=False),
        "first": ChannelsLastFacts(costs=rates, has_gradients=False),
    }
    return replace(target_facts(host_cpu_target()), channels_last=found[layout])


def compiled(model: Callable[..., Any], facts: TargetFacts, *, dynamic: bool) -> Callable[..., Any]:
    """The model compiled in this process; each call checks the strides of what it returns."""

    def compiler(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        with unset_fake_temporarily():
            run = compile_here(capture(gm), Counts(), facts)
        returned = [getattr(item, "meta", {}).get("val") for item in gm.graph.output_node().args[0]]

        def call(*args: Any) -> list[Any]:
            outputs = run(args)
            for output, traced in zip(outputs, returned, strict=True):
                if isinstance(traced, torch.Tensor) and not dynamic:
                    assert output.stride() == traced.stride()
            return outputs

        return make_boxed_func(call)

    torch._dynamo.reset()
    return torch.compile(model, backend=backend_around(compiler), dynamic=dynamic)


def _images(model: RandomConvNet, batch: int, layout: torch.memory_format) -> torch.Tensor:
    return torch.randn(batch, model.channels, HEIGHT, WIDTH).contiguous(memory_format=layout)


def _check(seed: int, layout: str, *, dynamic: bool = False) -> None:
    model = RandomConvNet(seed).eval().to(memory_format=FORMATS[seed % 2])
    function = compiled(model, facts_that_prefer(layout), dynamic=dynamic)
    for batch in (2, 3) if dynamic else (1 + seed % 3,) * 2:
        x = _images(model, batch, FORMATS[seed // 2 % 2])
        with torch.no_grad():
            _assert_close(function(x), model(x), f"seed {seed}: {model.kinds}, {model.end}")


def _assert_close(found: Any, expected: Any, what: str) -> None:
    # Convolutions add in another order in another layout.
    torch.testing.assert_close(
        found, expected, rtol=1e-3, atol=1e-4, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.parametrize("layout", ["eager", "first", "last"])
@pytest.mark.parametrize("seed", [6])
def test_a_network_equals_eager_in_each_layout(seed: int, layout: str) -> None:
    _check(seed, layout)


@pytest.mark.slow  # each network is compiled for half a second
@pytest.mark.parametrize("layout", ["eager", "first", "last"])
@pytest.mark.parametrize("seed", range(100, 140))
def test_random_networks_equal_eager(seed: int, layout: str) -> None:
    _check(seed, layout, dynamic=seed % 4 == 0)


def _trained(function: Callable[..., Any], model: RandomConvNet, x: torch.Tensor) -> list[Any]:
    model.zero_grad()
    given = x.clone().requires_grad_()
    outputs = function(given)
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((each * each).mean() for each in several).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*(each.detach() for each in several), given.grad, *gradients]


def _check_training(seed: int, layout: str) -> None:
    model = RandomConvNet(seed).train().to(memory_format=FORMATS[seed % 2])
    other = copy.deepcopy(model)
    function = compiled(other, facts_that_prefer(layout), dynamic=False)
    x = _images(model, 2, FORMATS[0])
    what = f"seed {seed}: {model.kinds}, {model.end}"
    _assert_close(_trained(function, other, x), _trained(model, model, x), what)


def test_gradients_equal_eager() -> None:
    _check_training(4, "last")


@pytest.mark.slow  # each network is compiled twice, for a second
@pytest.mark.parametrize("seed", range(200, 230))
def test_gradients_of_random_networks_equal_eager(seed: int) -> None:
    _check_training(seed, "last")


def test_a_weight_that_changes_between_calls_takes_effect() -> None:
    model = torch.nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)
    function = compiled(model, facts_that_prefer("last"), dynamic=False)
    x = torch.randn(2, 8, 16, 16)
    before = function(x)
    model.weight.data.mul_(2)  # its version counter stays the same
    torch.testing.assert_close(function(x), model(x), rtol=1e-3, atol=1e-4)
    assert not torch.equal(before, function(x))
