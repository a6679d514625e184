"""Draws the seeds of a program's random numbers from the framework's generator."""

from __future__ import annotations

import torch

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_ELEMS_APART = 8
"""Each seed starts a cache line of 64 bytes, because kernels are faster on aligned buffers."""


def draw_seeds(count: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """`count` new seeds of 64 random bits from the device's default generator.

    So `torch.manual_seed` determines them, and code that restores the generator's state, such as an
    activation checkpoint, gets the same seeds again.

    Shapes: each is (1,), i64.
    """
    drawn = torch.randint(
        _LOWEST, _HIGHEST, (count, _ELEMS_APART), dtype=torch.int64, device=device
    )
    return drawn[:, :1].unbind(0)
