"""The models of the warming job that `tests.attack.warming` runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LAYERS = 24
"""Capturing a model takes the job a few seconds, and compiling its kernels the farm much longer."""


class Layers(nn.Module):
    """Gated layers; each has constants of its own, so that no two kernels are equal."""

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.factors = [1.0 + (number * LAYERS + layer) / 4096 for layer in range(LAYERS)]
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` has rows of `width` numbers."""
        for factor in self.factors:
            hidden = nn.functional.gelu(self.up(self.norm(x * factor))) * factor
            gate = torch.softmax(self.down(hidden) * factor, -1) * torch.sigmoid(x)
            x = x + torch.tanh(gate - gate.amax(-1, keepdim=True))
        return x


def layers(number: int, width: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model of a number and width, with an example input."""
    return Layers(number, width), (torch.zeros(8, width),)
