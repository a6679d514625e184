"""The noise predictor of a latent diffusion model, with the sizes of Stable Diffusion 1.

Source: Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models", 2022: four
levels of 320 to 1,280 channels, two residual blocks each, attention over the image and a text.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (320, 640, 1280, 1280)
HEADS = 8
TEXT_WIDTH = 768
GROUPS = 32
_LONGEST_PERIOD = 10000.0


class ResidualBlock(nn.Module):
    """Two convolutions after group norms; the time step is added between them."""

    def __init__(self, before: int, after: int, time_width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.GroupNorm(GROUPS, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.time = nn.Linear(time_width, after)
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
        )
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (n, before, h, w), time: (n, time_width) -> (n, after, h, w)."""
        hidden = self.enter(x) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.leave(hidden)


class Attention(nn.Module):
    """Attention of one sequence over itself or over another."""

    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(other, width, bias=False)
        self.value = nn.Linear(other, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (n, tokens, width), other: (n, others, other) -> x's."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(other), self.value(other))
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention over the image, attention over the text, and a gated layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.enter = nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.image = Attention(width, width)
        self.text = Attention(width, TEXT_WIDTH)
        self.gated = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)
        self.leave = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (n, width, h, w), text: (n, tokens, TEXT_WIDTH) -> x's."""
        size = x.shape[-2:]
        hidden = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](hidden)
        hidden = hidden + self.image(normed, normed)
        hidden = hidden + self.text(self.norms[1](hidden), text)
        value, gate = self.gated(self.norms[2](hidden)).chunk(2, dim=-1)
        hidden = hidden + self.down(value * functional.gelu(gate))
        return x + self.leave(hidden.transpose(1, 2).unflatten(2, size))


class Level(nn.Module):
    """A residual block, with a transformer block except at the lowest level."""

    def __init__(self, before: int, after: int, time_width: int, *, attends: bool) -> None:
        super().__init__()
        self.block = ResidualBlock(before, after, time_width)
        self.attention = TransformerBlock(after) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (n, before, h, w), time: (n, time_width) -> (n, after, h, w)."""
        x = self.block(x, time)
        return x if self.attention is None else self.attention(x, text)


class DiffusionUNet(nn.Module):
    """The network, which predicts the noise in latent images at a time step under a text."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        first, time_width = widths[0], 4 * widths[0]
        self.time = nn.Sequential(
            nn.Linear(first, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.enter = nn.Conv2d(4, first, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        saved, width, last = [first], first, len(widths) - 1
        for number, after in enumerate(widths):
            for _ in range(2):
                self.down.append(Level(width, after, time_width, attends=number < last))
                saved.append(after)
                width = after
            if number < last:
                self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                saved.append(width)
        self.middle = nn.ModuleList(
            Level(width, width, time_width, attends=attends) for attends in (True, False)
        )
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for number, after in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(Level(width + saved.pop(), after, time_width, attends=number < last))
                width = after
            if number:
                self.grow.append(nn.Conv2d(width, width, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, first), nn.SiLU(), nn.Conv2d(first, 4, 3, padding=1)
        )

    def forward(self, x: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (n, 4, h, w), step: (n,), text: (n, tokens, TEXT_WIDTH) -> x's."""
        time = self.time(_waves(step, self.time[0].in_features).to(x.dtype))
        x = self.enter(x)
        saved = [x]
        for number, level in enumerate(self.down):
            x = level(x, time, text)
            saved.append(x)
            if number % 2 and number // 2 < len(self.shrink):
                x = self.shrink[number // 2](x)
                saved.append(x)
        for level in self.middle:
            x = level(x, time, text)
        for number, level in enumerate(self.up):
            x = level(torch.cat([x, saved.pop()], dim=1), time, text)
            if number % 3 == 2 and number // 3 < len(self.grow):
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
                x = self.grow[number // 3](x)
        return self.leave(x)


def _waves(step: torch.Tensor, width: int) -> torch.Tensor:
    """Cosines and sines of a time step. Shapes: (n,) -> (n, width), f32."""
    half = width // 2
    powers = torch.arange(half, dtype=torch.float32, device=step.device) / half
    angles = step[:, None].float() * torch.exp(-math.log(_LONGEST_PERIOD) * powers)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
