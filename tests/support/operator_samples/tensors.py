"""Tensors for sample calls; the same in each run."""

from __future__ import annotations

import math

import torch

INF, NAN = math.inf, math.nan
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed floats, or integers from 0 to 9, or bools; the same in each run."""
    generator = torch.Generator().manual_seed(seed + 17 * len(shape) + sum(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 10, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (normal(*shape, seed=seed).abs() + 0.1).to(dtype)


def between(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Floats well inside (-1, 1)."""
    return (normal(*shape).clamp(-3, 3) / 3.5).to(dtype)


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 2.5], dtype=dtype)


def index(*shape: int, below: int) -> torch.Tensor:
    """Indices from -below to below-1."""
    generator = torch.Generator().manual_seed(sum(shape) + below)
    return torch.randint(-below, below, shape, generator=generator)
