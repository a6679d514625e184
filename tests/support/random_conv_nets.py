"""Random convolutional networks of a few layers, with residuals, pools, norms and views."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

HEIGHT, WIDTH = 9, 12
_LAYERS = (
    *("conv", "conv", "conv", "depthwise", "grouped", "transposed", "norm", "pool", "average"),
    *("cat", "channels", "group norm", "grow", "scale", "half", "tokens"),
)
_ENDS = ("flat", "image", "convolution", "several", "permuted")


class RandomConvNet(nn.Module):
    """A network that one seed determines; `channels` are those of its input."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self._draw = random.Random(seed)
        self.channels = width = self._draw.choice((1, 3, 4, 8))
        self.kinds: list[str] = []
        self.layers = nn.ModuleList()
        for _ in range(self._draw.randint(2, 6)):
            kind = self._draw.choice(_LAYERS)
            if width % 4 and kind in ("grouped", "half"):
                continue
            layer, width = self._layer(kind, width)
            self.kinds.append(kind)
            self.layers.append(layer)
        self.end = self._draw.choice(_ENDS)
        self.last = nn.Linear(4 * width, 5) if self.end == "flat" else nn.Conv2d(width, 6, 3, 1, 1)
        for module in self.modules():  # statistics as after training
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)

    def forward(self, x: torch.Tensor) -> Any:
        """Shapes: x: (batch, channels, height, width)."""
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            x = _applied(kind, layer, x)
        match self.end:
            case "flat":
                return self.last(F.adaptive_avg_pool2d(x, 2).flatten(1))
            case "image":
                return x + 1
            case "convolution":
                return self.last(x)
            case "several":
                y = self.last(x)
                return y, x * 2, y.relu().flatten(1)
            case _:
                return x.permute(0, 2, 3, 1) + 1

    def _layer(self, kind: str, width: int) -> tuple[nn.Module, int]:
        match kind:
            case "conv":
                made, taps = self._draw.choice((1, 4, 8, 12)), self._draw.choice((1, 3))
                stride, bias = self._draw.choice((1, 1, 2)), self._draw.random() < 0.5
                return nn.Conv2d(width, made, taps, stride, taps // 2, bias=bias), made
            case "depthwise":
                return nn.Conv2d(width, width, 3, 1, 1, groups=width), width
            case "grouped":
                return nn.Conv2d(width, width, 3, 1, 1, groups=2), width
            case "transposed":
                return nn.ConvTranspose2d(width, 4, 2, 2), 4
            case "norm":
                return nn.BatchNorm2d(width), width
            case "channels":
                return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)), width
            case "group norm":
                return nn.GroupNorm(1, width), width
            case "cat":
                return nn.Identity(), 2 * width
            case "half":
                return nn.Identity(), width // 2
            case _:
                return nn.Identity(), width


def _applied(kind: str, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    match kind:
        case "norm" | "group norm":
            return F.relu(layer(x))
        case "channels":
            return x + layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        case "pool":
            return F.max_pool2d(x, 3, 1, 1)
        case "average":
            return F.avg_pool2d(x, 3, 1, 1)
        case "cat":
            return torch.cat([x, x.sin()], 1)
        case "grow":
            return F.interpolate(x, scale_factor=2)
        case "scale":
            return x * torch.sigmoid(x.mean((2, 3), keepdim=True))
        case "half":
            return x[:, : x.shape[1] // 2]
        case "tokens":
            tokens = x.flatten(2).transpose(1, 2).relu()
            return tokens.transpose(1, 2).reshape(x.shape)
        case _:
            return layer(x)
