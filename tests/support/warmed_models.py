"""Python entries of the manifests of warming jobs in tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from examples.model_zoo import MODELS


class Scaled(nn.Module):
    """A small model with a constant, which makes each number a model of its own."""

    def __init__(self, number: float, *, breaks: bool = False) -> None:
        super().__init__()
        self.number, self.breaks = number, breaks
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (rows, 8) -> (8,)."""
        y = torch.sin(self.linear(x) * self.number)
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.softmax(y, 0).sum(0)


def scaled(
    number: float, breaks: bool = False, frozen: bool = False
) -> tuple[nn.Module, tuple[Any, ...]]:
    """A small model, frozen if it needs no gradients, and an input of two rows."""
    torch.manual_seed(0)
    model = Scaled(number, breaks=breaks).eval()
    return model.requires_grad_(not frozen), (torch.randn(2, 8),)


class Layer(nn.Module):
    """Two products of one layer; each width makes other subjects of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 256)
        self.down = nn.Linear(256, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (rows, width) -> (rows, width)."""
        return (x + self.down(nn.functional.gelu(self.up(x)))).softmax(-1)


def layer(width: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """A layer with products, and an input of 16 rows."""
    torch.manual_seed(0)
    return Layer(width), (torch.randn(16, width),)


def images() -> tuple[nn.Module, tuple[Any, ...]]:
    """Two convolutions of bf16 with a norm, and images of few pixels."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)
    given = torch.randn(2, 3, 12, 12, dtype=torch.bfloat16)
    return nn.Sequential(*layers).to(torch.bfloat16), (given,)


def zoo(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model of the zoo."""
    source = MODELS[name]()
    return source.model, source.args


def broken() -> None:
    """An entry that fails."""
    raise ValueError("no weights here")
