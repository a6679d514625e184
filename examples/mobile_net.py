"""A convolutional network for mobile devices: MobileNetV3-Large by its published table.

Source: Howard et al., "Searching for MobileNetV3", 2019, table 1.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

# (kernel, expanded channels, channels, is gated, activation, stride)
_BLOCKS = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hardswish", 2),
    (3, 200, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1),
    (3, 480, 112, True, "hardswish", 1),
    (3, 672, 112, True, "hardswish", 1),
    (5, 672, 160, True, "hardswish", 2),
    (5, 960, 160, True, "hardswish", 1),
    (5, 960, 160, True, "hardswish", 1),
)
_ACTIVATIONS = {"relu": nn.ReLU, "hardswish": nn.Hardswish}
_GATE_SHARE, _CHANNEL_STEP = 4, 8


class MobileNet(nn.Module):
    """Logits of images.

    Shapes: (batch, 3, height, width) -> (batch, classes).
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_normed(3, 16, 3, stride=2), nn.Hardswish()]
        given = 16
        for kernel, expanded, channels, is_gated, activation, stride in _BLOCKS:
            act = _ACTIVATIONS[activation]
            layers.append(_Block((given, expanded, channels), kernel, stride, act, is_gated))
            given = channels
        layers += [_normed(given, 960, 1), nn.Hardswish()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits."""
        found: torch.Tensor = self.head(self.features(images).mean((2, 3)))
        return found


class _Block(nn.Module):
    """Expands the channels, convolves each, weighs them by a gate, and narrows them again."""

    def __init__(
        self,
        channels: tuple[int, int, int],
        kernel: int,
        stride: int,
        activation: type[nn.Module],
        is_gated: bool,
    ) -> None:
        super().__init__()
        given, expanded, narrow = channels
        layers: list[nn.Module] = []
        if expanded != given:
            layers += [_normed(given, expanded, 1), activation()]
        layers += [_normed(expanded, expanded, kernel, stride, groups=expanded), activation()]
        if is_gated:
            layers.append(_Gate(expanded))
        self.layers = nn.Sequential(*layers, _normed(expanded, narrow, 1))
        self._is_residual = stride == 1 and given == narrow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return x + found if self._is_residual else found


class _Gate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = -(-channels // _GATE_SHARE // _CHANNEL_STEP) * _CHANNEL_STEP
        self.narrow = nn.Conv2d(channels, inner, 1)
        self.widen = nn.Conv2d(inner, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = functional.relu(self.narrow(x.mean((2, 3), keepdim=True)))
        return x * functional.hardsigmoid(self.widen(pooled))


def _normed(
    given: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(given, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels, eps=1e-3),
    )
