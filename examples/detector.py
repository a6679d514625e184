"""A detector of objects in images: convolutions of several sizes whose levels are joined again.

It has the layers and widths of the smallest published detector of its kind: a backbone of stages of
which each halves the image, a pyramid that joins three of them from the top and from the bottom,
and two heads for each level.

Source: Wang et al., "CSPNet", 2019; Liu et al., "Path Aggregation Network", 2018; Jocher et al.,
"Ultralytics YOLO", 2023 (the table of its nano model).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_WIDTHS = (16, 32, 64, 128, 256)
_REPEATS = (1, 2, 2, 1)
_BINS = 16


class Detector(nn.Module):
    """Boxes, as distributions of the distances of their sides, and scores of classes.

    Shapes: (batch, 3, height, width) -> (batch, 64 + classes, cells), where the cells are the
    pixels of images of an eighth, a sixteenth and a thirty-second of the height and width.
    """

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.stem = _Normed(3, _WIDTHS[0], 3, stride=2)
        stages = zip(_WIDTHS, _WIDTHS[1:], _REPEATS, strict=False)
        self.stages = nn.ModuleList(
            nn.Sequential(_Normed(given, width, 3, stride=2), _Split(width, width, repeats))
            for given, width, repeats in stages
        )
        self.pooled = _Pooled(_WIDTHS[-1])
        self.down = nn.ModuleList([_joined(256 + 128, 128), _joined(128 + 64, 64)])
        self.shrink = nn.ModuleList(_Normed(width, width, 3, stride=2) for width in (64, 128))
        self.up = nn.ModuleList([_joined(64 + 128, 128), _joined(128 + 256, 256)])
        levels = _WIDTHS[-3:]
        self.boxes = nn.ModuleList(_head(width, 64, 4 * _BINS) for width in levels)
        self.classes = nn.ModuleList(_head(width, max(64, classes), classes) for width in levels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The boxes and the scores of each cell."""
        found = self.stem(images)
        levels = []
        for stage in self.stages:
            found = stage(found)
            levels.append(found)
        _, fine, middle, coarse = levels
        coarse = self.pooled(coarse)
        middle = self.down[0](torch.cat([_doubled(coarse), middle], 1))
        fine = self.down[1](torch.cat([_doubled(middle), fine], 1))
        middle = self.up[0](torch.cat([self.shrink[0](fine), middle], 1))
        coarse = self.up[1](torch.cat([self.shrink[1](middle), coarse], 1))
        return torch.cat(
            [
                torch.cat([box(level), scores(level).sigmoid()], 1).flatten(2)
                for box, scores, level in zip(
                    self.boxes, self.classes, (fine, middle, coarse), strict=True
                )
            ],
            2,
        )


def _doubled(images: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(images, scale_factor=2, mode="nearest")


def _head(given: int, inner: int, results: int) -> nn.Sequential:
    return nn.Sequential(
        _Normed(given, inner, 3), _Normed(inner, inner, 3), nn.Conv2d(inner, results, 1)
    )


class _Normed(nn.Module):
    """A convolution, a batch norm, and SiLU."""

    def __init__(self, given: int, width: int, side: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(given, width, side, stride, side // 2, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional.silu(self.norm(self.conv(images)))
        return found


class _Split(nn.Module):
    """One half of the channels passes through blocks; all their results are joined."""

    def __init__(self, given: int, width: int, repeats: int, *, is_residual: bool = True) -> None:
        super().__init__()
        half = width // 2
        self.first = _Normed(given, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(_Normed(half, half, 3), _Normed(half, half, 3)) for _ in range(repeats)
        )
        self.last = _Normed((2 + repeats) * half, width, 1)
        self.is_residual = is_residual

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = [*self.first(images).chunk(2, 1)]
        for block in self.blocks:
            found = block(parts[-1])
            parts.append(parts[-1] + found if self.is_residual else found)
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined


def _joined(given: int, width: int) -> _Split:
    return _Split(given, width, 1, is_residual=False)


class _Pooled(nn.Module):
    """Joins the largest values of windows of 1, 5, 9 and 13 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _Normed(width, width // 2, 1)
        self.last = _Normed(2 * width, width, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = [self.first(images)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined
