"""Models for tests of packages, each with the code, attributes and values that addresses state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.packages.call_facts import Question, question_of

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


class Compared(Scaled):
    """A model of its own for tests of the nearest package: no other test revokes its packages."""


class Counting(nn.Module):
    """A model that writes to a buffer at each call."""

    calls: torch.Tensor

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (rows, columns) -> (rows, columns)."""
        self.calls += 1
        return (x * self.number).sin() * self.calls


def scaled(x: torch.Tensor, number: float) -> torch.Tensor:
    """A function without a module."""
    return (x * number).sin().sum(0)


class Attends(nn.Module):
    """Attention and a norm, whose numbers are attributes: PyTorch lets one vary and fixes one."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.scale, self.epsilon = number, 1e-3 * number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (1, rows, columns) -> (1, rows, columns)."""
        normed = x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return nn.functional.scaled_dot_product_attention(normed, normed, x, scale=self.scale)


class Chooses(nn.Module):
    """Its code has a set of texts, whose order differs between processes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled(0.5)
        self.kind = "one"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (rows, 12) -> (rows, 8)."""
        return self.inner(x) if self.kind in {"one", "two", "three", "four"} else x


def asked(
    call: Callable[..., Any], *args: Any, deterministic: bool = False, **kwargs: Any
) -> Question:
    """What a client asks for a call of a function or module."""
    return question_of(call, args, kwargs, CompileOptions(is_deterministic=deterministic))
