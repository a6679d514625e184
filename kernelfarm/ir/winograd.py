"""Winograd's algorithm F(2 x 2, 3 x 3) for convolutions, and where kernels are faster by it.

A tile of 2 x 2 pixels of the result is computed from 4 x 4 pixels of the image. Three transforms,
by sums and differences, replace 36 multiplications for each pair of channels by 16. Clients
transform weights once, so the algorithm is for frozen models.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernelfarm.targets import WinogradFacts

WINOGRAD: Final = "kernelfarm.winograd_convolution.default"
"""The operator in captured graphs."""
TILE: Final = 2
"""The pixels of a side of a tile."""
SPAN: Final = 4
"""The pixels of the image that a side of a tile is computed from."""
NUMBERS: Final = SPAN * SPAN
"""The transformed numbers of a tile and of a window, for each channel."""
WINDOW: Final = 3
"""The pixels of a side of a window."""
_F32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Convolution:
    """The convolution of a frozen model.

    `image` has its extents (n, c, h, w), None for those that vary; `weight` has (k, c / groups,
    rows, columns). `window` has strides, padding and dilations of both axes, and the number of
    groups. `dtype` is the type of the elements (a value of `DType`).
    """

    image: tuple[int | None, ...]
    weight: tuple[int, ...]
    window: tuple[object, ...]
    dtype: str


def padding_of(image: Sequence[int], result: Sequence[int]) -> int | None:
    """The pixels of padding on each side, 0 or 1; None if the sizes are those of no such window.

    Both are (height, width) in pixels.
    """
    for padding in (0, 1):
        if [extent - WINDOW + 1 + 2 * padding for extent in image] == [*result]:
            return padding
    return None


def tiles_of(extent: int) -> int:
    """The tiles along an axis of so many pixels of the result."""
    return -(-extent // TILE)


def refusal(convolution: Convolution, known: WinogradFacts) -> str | None:
    """Why kernels do not compute a convolution so; None if they do."""
    refused = _window_refusal(convolution)
    if refused is None and convolution.dtype not in known.types:
        return f"of {convolution.dtype}, for which kernels were not timed"
    return refused or _size_refusal(convolution, known)


def _window_refusal(convolution: Convolution) -> str | None:
    window = convolution.window
    sides, groups = convolution.weight[2:], window[-1]
    if sides != (WINDOW, WINDOW) or groups != 1:
        return "with windows of other sizes, or groups"
    if window[:2] != (1, 1) or window[4:6] != (1, 1):
        return "with strides or dilations"
    return None if window[2:4] in {(0, 0), (1, 1)} else "with other padding than 0 or 1"


def _size_refusal(convolution: Convolution, known: WinogradFacts) -> str | None:
    extents = [extent for extent in convolution.image if extent is not None]
    if len(extents) != len(convolution.image):
        return "of varying sizes"
    images, _, *pixels = extents
    lost = WINDOW - 1 if convolution.window[2] == 0 else 0
    tiles = images * math.prod(tiles_of(extent - lost) for extent in pixels)
    is_large = tiles >= known.many_tiles
    least = known.least_channels_of_many if is_large else known.least_channels
    results, channels = convolution.weight[:2]
    if min(results, channels) < least:
        return f"of fewer than {least} channels" + (f" and {tiles} tiles" if is_large else "")
    if NUMBERS * tiles * (results + channels) * _F32_BYTES > known.most_bytes:
        return f"whose transformed tiles take more than {known.most_bytes} bytes"
    return None
