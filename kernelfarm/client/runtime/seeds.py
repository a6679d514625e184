"""Seeds of a program's random numbers, from the framework's own generator."""

from __future__ import annotations

import torch

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_ELEMS_APART = 8
"""Each seed has a cache line of its own: kernels like buffers that begin at one (64 bytes)."""


def draw_seeds(count: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """`count` fresh seeds of 64 random bits from the device's default generator.

    So `torch.manual_seed` governs them, and whoever restores the generator's state (activation
    checkpoints do) gets the same seeds again.

    Shapes: each is (1,), i64.
    """
    drawn = torch.randint(
        _LOWEST, _HIGHEST, (count, _ELEMS_APART), dtype=torch.int64, device=device
    )
    return drawn[:, :1].unbind(0)
