"""Models for tests of packages, each with the code, attributes and values that addresses state."""

from __future__ import annotations

import torch
from torch import nn

SHIFT = 0.5


def shifted(x: torch.Tensor) -> torch.Tensor:
    """A function of the module, which `Scaled` calls."""
    return x + SHIFT


class Scaled(nn.Module):
    """Two layers and a number; the number makes each test's model another one."""

    def __init__(self, number: float, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 8)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (rows, 12) -> (rows, 8)."""
        hidden = torch.relu(self.first(x)) * self.number
        return shifted(self.second(hidden)).softmax(-1)


def scaled(x: torch.Tensor, number: float) -> torch.Tensor:
    """A function without a module."""
    return (x * number).sin().sum(0)
