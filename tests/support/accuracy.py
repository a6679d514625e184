"""Compares results with float64, relative to eager's own rounding error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

FEW_ULP = 8


def assert_as_good_as_eager(
    result: torch.Tensor, function: Callable[..., Any], *args: torch.Tensor
) -> None:
    """The result's error is at most twice eager's, or a few units in the last place."""
    with torch.no_grad():
        eager = function(*args)
        exact = _in_f64(function)(*(_wide(a) for a in args))
    assert (result.dtype, result.shape, result.stride()) == (
        eager.dtype,
        eager.shape,
        eager.stride(),
    )
    ulp = torch.finfo(eager.dtype).eps * exact.abs().clamp(min=torch.finfo(eager.dtype).tiny)
    allowed = 2 * (eager.double() - exact).abs().max() + FEW_ULP * ulp.max()
    error = (result.double() - exact).abs().max()
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _in_f64(function: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(function, torch.nn.Module):
        return copy.deepcopy(function).double()
    return function
