"""The models of the warming job that `tests.attack.warming` runs: a block of a transformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH = 64


class Block(nn.Module):
    """A gated block; each size and constant of it is another program of several kernels."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of rows of `WIDTH` numbers."""
        hidden = nn.functional.gelu(self.up(self.norm(x))) * self.constant
        gated = torch.softmax(self.down(hidden), -1) * torch.sigmoid(x).cumsum(-1)
        return x + torch.tanh(gated - gated.amax(-1, keepdim=True))


def block(number: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """The block of a number, with an example input."""
    return Block(1.0 + number / 1024), (torch.zeros(8, WIDTH),)
