"""Random convolutional networks of a few layers, with residuals, pools, norms and views."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

HEIGHT, WIDTH = 9, 12
_Apply = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _plain(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layer(x)
    return result


def _tokens(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).transpose(1, 2).relu().transpose(1, 2).reshape(x.shape)


_APPLIED: dict[str, _Apply] = {
    "conv": _plain,
    "depthwise": _plain,
    "grouped": _plain,
    "transposed": _plain,
    "norm": lambda layer, x: nn.functional.relu(layer(x)),
    "group norm": lambda layer, x: nn.functional.relu(layer(x)),
    "channels": lambda layer, x: x + layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "pool": lambda _, x: nn.functional.max_pool2d(x, 3, 1, 1),
    "average": lambda _, x: nn.functional.avg_pool2d(x, 3, 1, 1),
    "cat": lambda _, x: torch.cat([x, x.sin()], 1),
    "grow": lambda _, x: nn.functional.interpolate(x, scale_factor=2),
    "scale": lambda _, x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    "half": lambda _, x: x[:, : x.shape[1] // 2],
    "tokens": _tokens,
}
_ENDS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "flat": lambda last, x: last(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)),
    "image": lambda _, x: x + 1,
    "convolution": lambda last, x: last(x),
    "several": lambda last, x: (last(x), x * 2, last(x).relu().flatten(1)),
    "permuted": lambda _, x: x.permute(0, 2, 3, 1) + 1,
}


class RandomConvNet(nn.Module):
    """A network that one seed determines; `channels` are those of its input."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.channels = width = draw.choice((1, 3, 4, 8))
        self.kinds: list[str] = []
        self.layers = nn.ModuleList()
        for _ in range(draw.randint(2, 6)):
            kind = draw.choice(("conv", "conv", *_APPLIED))
            if width % 4 and kind in ("grouped", "half"):
                continue
            layer, width = _layer(draw, kind, width)
            self.kinds.append(kind)
            self.layers.append(layer)
        self.end = draw.choice(tuple(_ENDS))
        self.last = nn.Linear(4 * width, 5) if self.end == "flat" else nn.Conv2d(width, 6, 3, 1, 1)
        for module in self.modules():  # statistics as after training
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)

    def forward(self, x: torch.Tensor) -> Any:
        """Shapes: x: (batch, channels, height, width)."""
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            x = _APPLIED[kind](layer, x)
        return _ENDS[self.end](self.last, x)


def _layer(draw: random.Random, kind: str, width: int) -> tuple[nn.Module, int]:
    """A layer for an image of `width` channels, and the channels after it."""
    if kind == "conv":
        made, taps = draw.choice((1, 4, 8, 12)), draw.choice((1, 3))
        stride, bias = draw.choice((1, 1, 2)), draw.random() < 0.5
        return nn.Conv2d(width, made, taps, stride, taps // 2, bias=bias), made
    layers: dict[str, Callable[[], nn.Module]] = {
        "depthwise": lambda: nn.Conv2d(width, width, 3, 1, 1, groups=width),
        "grouped": lambda: nn.Conv2d(width, width, 3, 1, 1, groups=2),
        "transposed": lambda: nn.ConvTranspose2d(width, 4, 2, 2),
        "norm": lambda: nn.BatchNorm2d(width),
        "group norm": lambda: nn.GroupNorm(1, width),
        "channels": lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)),
    }
    widths = {"transposed": 4, "cat": 2 * width, "half": width // 2}
    return layers.get(kind, nn.Identity)(), widths.get(kind, width)
