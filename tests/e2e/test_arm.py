"""Models whose kernels QEMU runs on Arm processors are as exact as eager ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from examples.real_inputs import WHOLE_GRAPHS
from tests.support.arm_emulator import needs_arm
from tests.support.arm_programs import compiled_for_arm

TARGETS = ("cpu:aarch64-bf16", "cpu:aarch64-sve256")
NAMES = [
    "reference",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "bert")),
]


@needs_arm()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_as_exact_as_in_eager(name: str, target: str, dtype: torch.dtype) -> None:
    given = WHOLE_GRAPHS[name]()
    model = given.model.to(dtype).eval()
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        found = list(tensors(compiled_for_arm(model, target)(*of_type(given.args, dtype))))
        eager = list(tensors(model(*of_type(given.args, dtype))))
        exact = list(tensors(wide(*of_type(of_type(given.args, dtype), torch.float64))))
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        allowed = torch.finfo(dtype).eps * right.abs().max()
        error, usual = ((t.double() - right).abs().max() for t in (ours, theirs))
        assert error <= 2 * max(usual, allowed)


def of_type(args: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [a.to(dtype) if a.is_floating_point() else a for a in args]


def tensors(found: Any) -> Iterator[torch.Tensor]:
    """The tensors in a model's result."""
    if isinstance(found, torch.Tensor):
        yield found
        return
    for inside in found.values() if isinstance(found, dict) else found:
        yield from tensors(inside)
