"""Tiles of depthwise convolutions: the pixels that a tile reads, and what each is a part of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import Expr

_MAX_READ = 48
"""The most pixels of a row that a tile of several pixels reads."""
MAX_STRIDE = 8
"""The longest stride: tiles of gradients have whole strides of pixels, with code for each pixel."""
_TILES = (14, 16, 8, 7, 4, 2, 1)
_MAX_STRIDED_READ = 13
"""The same for strides of several pixels: with more, the programs of a multiprocessor read so many
rows at a time that its cache loses them."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution, each pair (down, across) in pixels."""

    sides: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PixelTile:
    """A tile of `width` pixels of a row, and for each pixel that it reads what that is part of.

    `taps` has by column, from that of tile number t, `t * advance`, on, pairs of a pixel of the
    tile and one of the window.
    """

    width: int
    advance: int
    taps: Mapping[int, Sequence[tuple[int, int]]]

    @property
    def cost(self) -> int:
        """A pixel that is read takes about as long as two multiplications."""
        return sum(map(len, self.taps.values())) + 2 * len(self.taps)


def chosen_tile(columns: Expr, window: Window, *, is_backwards: bool = False) -> PixelTile:
    """The tile that needs the fewest instructions for a row of so many pixels."""
    found = [made_tile(width, window, is_backwards=is_backwards) for width in _TILES]
    most = _MAX_READ if window.strides[1] == 1 or is_backwards else _MAX_STRIDED_READ
    tiles = [t for t in found if len(t.taps) <= most] or found[-1:]
    if not columns.is_constant:
        return tiles[0]
    return min(tiles, key=lambda tile: -(-columns.constant // tile.width) * tile.cost)


def made_tile(width: int, window: Window, *, is_backwards: bool) -> PixelTile:
    """A tile of about so many pixels."""
    if not is_backwards:
        return _tile(width, window)
    step = window.strides[1]
    return _tile_backwards(max(width // step, 1) * step, window)


def _tile(width: int, window: Window) -> PixelTile:
    step, left = window.strides[1], window.padding[1]
    taps: dict[int, list[tuple[int, int]]] = {}
    for t in range(width):
        for k in range(window.sides[1]):
            taps.setdefault(t * step + k - left, []).append((t, k))
    return PixelTile(width, width * step, dict(sorted(taps.items())))


def _tile_backwards(width: int, window: Window) -> PixelTile:
    """The pixels of the result that each pixel of the image is a part of.

    `width` is a multiple of the step.
    """
    step, left = window.strides[1], window.padding[1]
    taps: dict[int, list[tuple[int, int]]] = {}
    for t in range(width):
        for k in range(window.sides[1]):
            if (t + left - k) % step == 0:
                taps.setdefault((t + left - k) // step, []).append((t, k))
    return PixelTile(width, width // step, dict(sorted(taps.items())))
