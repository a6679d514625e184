"""Convolutional models whose batch and image sizes vary: one compile, externs only for products."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from examples.model_zoo import model_of
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.ir.program_ir import ExternCall
from tests.support.like_eager import assert_same, compiled, numbers

PRODUCTS = {"aten.convolution.default", "aten.addmm.default"}
SIZES = ((2, 64, 64), (3, 96, 64), (5, 64, 128), (2, 64, 64))


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


def marked(batch: int, height: int, width: int) -> torch.Tensor:
    x = numbers(batch, 3, height, width)
    for axis in (0, 2, 3):
        torch._dynamo.mark_dynamic(x, axis)
    return x


@pytest.mark.parametrize("name", ["unet", pytest.param("resnet", marks=pytest.mark.slow)])
def test_a_convolutional_model_serves_every_batch_and_image_size(name, programs):
    model = model_of(name, torch.float32).model
    fast = compiled(model)
    with torch.no_grad():
        for size in SIZES:
            assert_same(fast(marked(*size)), model(marked(*size)), rtol=1e-4)
    (program,) = programs
    externs = {step.op for step in program.plan.steps if isinstance(step, ExternCall)}
    assert externs <= PRODUCTS


def test_windows_on_images_of_every_size_are_kernels(programs):
    def function(x):
        pooled = F.max_pool2d(x, 3, 2, 1)
        return pooled, F.avg_pool2d(x, 3, 2, 1), F.unfold(x, 3, stride=2)

    fast = compiled(function)
    for size in ((2, 9, 12), (3, 10, 7), (2, 33, 18)):
        assert_same(fast(marked(*size)), function(marked(*size)), rtol=1e-5)
    (program,) = programs
    assert not [step.op for step in program.plan.steps if isinstance(step, ExternCall)]
