"""A kernel of a public package, in a model that calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

PINNED = ("liger-kernel==0.8.5", "flag-gems==5.0.2", "sqlalchemy==2.0.48", "PyYAML==6.0.3")
"""The packages with the kernels, and what FlagGems needs to be imported."""

ROWS, WIDTH = 64, 4096
"""Most kernels work on so many rows of this many elements."""

EPSILON = 1e-6
"""Of the norms."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class PublicKernel:
    """A kernel's name, a model that calls it, the model's arguments, and what it should return.

    `exact` computes the model's results with PyTorch's operators; it is given the arguments in
    float64. A result may differ from it by `tolerance` of its largest element.
    """

    name: str
    model: Callable[..., Any]
    arguments: Tensors
    exact: Callable[..., Tensors]
    tolerance: float = 1e-2


def numbers(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0
) -> torch.Tensor:
    """Normally distributed numbers, the same in each run."""
    generator = torch.Generator().manual_seed(100 * seed + len(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def inverse_rms(x: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + epsilon) of each row, in float64."""
    return (x.double().square().mean(-1) + EPSILON).rsqrt()


def rms_normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm of each row."""
    return x * inverse_rms(x)[:, None] * w
