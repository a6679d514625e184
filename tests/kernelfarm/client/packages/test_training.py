"""Packages of training steps and of models that write to their inputs: two programs, no trace."""

from __future__ import annotations

import torch
from torch import nn

import kernelfarm
from tests.support.like_eager import numbers
from tests.support.package_machines import machine, traced_frames
from tests.support.packaged_models import Counting, Scaled
from tests.support.trace_machines import Fleet, counted, traces_made


def gradients(model: nn.Module, call: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The loss of one step, and the gradients of the input and all parameters."""
    given = x.clone().requires_grad_()
    model.zero_grad()
    loss = call(given).square().sum()
    loss.backward()
    found = [given.grad, *(parameter.grad for parameter in model.parameters())]
    return [loss.detach(), *(gradient.clone() for gradient in found if gradient is not None)]


def step(fleet: Fleet) -> None:
    """Calls a packaged model twice with gradients, and compares them with eager's."""
    model, x = Scaled(fleet.number, seed=2), numbers(5, 12)
    fast = kernelfarm.packaged(model)
    for _ in range(2):
        for ours, eager in zip(gradients(model, fast, x), gradients(model, model, x), strict=True):
            # The number scales the logits, and so the errors of what follows them.
            atol = 1e-5 * max(1.0, fleet.number, eager.abs().max().item())
            torch.testing.assert_close(ours, eager, rtol=1e-5, atol=atol)


def test_a_training_step_is_neither_traced_nor_compiled(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    step(fleet)
    assert counted()["packages.farm.published"] == 1
    disk = machine(fleet)
    step(fleet)
    seen = counted()
    assert (seen["packages.farm.hits"], seen["packages.loaded"]) == (1, 1)
    assert (traces_made(), traced_frames(), seen.get("farm.misses", 0)) == (0, 0, 0)
    # What it got it keeps: the next process of this machine asks nobody.
    machine(fleet, disk=disk.name)
    step(fleet)
    seen = counted()
    assert (seen["packages.disk.hits"], seen["disk.hits"], traced_frames()) == (1, 2, 0)
    assert not fleet.meddling.calls


def test_gradients_and_inference_have_packages_of_their_own(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    step(fleet)
    machine(fleet)
    model, x = Scaled(fleet.number), numbers(5, 12)
    with torch.no_grad():
        torch.testing.assert_close(kernelfarm.packaged(model)(x), model(x))
    assert "packages.farm.hits" not in counted()
    assert traced_frames() == 1


def test_one_package_trains_with_sizes_that_vary(fleet: Fleet) -> None:
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        model = Scaled(fleet.number, seed=2)
        fast = kernelfarm.packaged(model)
        for rows in (5,) if publishes else (3, 9):
            given, same = numbers(rows, 12), numbers(rows, 12)
            if publishes:
                torch._dynamo.mark_dynamic(given, 0, min=2, max=64)
            torch.testing.assert_close(fast(given), model(same))
            fast(given).sum().backward()
    assert (counted()["packages.loaded"], traced_frames()) == (1, 0)


def test_a_model_that_counts_its_calls_in_a_buffer_has_a_package(fleet: Fleet) -> None:
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        model, same, x = Counting(fleet.number), Counting(fleet.number), numbers(3, 4)
        fast = kernelfarm.packaged(model)
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(fast(x), same(x))
        assert model.calls.tolist() == same.calls.tolist() == [3.0]
    assert (counted()["packages.loaded"], traced_frames()) == (1, 0)
