"""Depthwise convolutions that kernels of processors compute: clients and the optimizer ask.

The emitter divides rows of results in tiles that have code of their own at both ends of a row, so
windows and rows are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernelfarm.targets import DepthwiseFacts

MOST_SIDE: Final = 13
"""The most pixels of a side of a window; each has code for all pixels of a tile."""
MOST_COLUMNS: Final = 512
"""The most pixels of a row of results, whose sums are on the stack."""
_LEAST_COLUMNS: Final = 2
_F32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class DepthwiseShape:
    """What decides whether kernels compute a depthwise convolution.

    `dtype` is the type of the image's elements (a value of `DType`). `sides` and `padding` are
    (down, across). `columns` are the pixels of a row of results, None if they vary. `elements` are
    those of all images and results, None if their number varies.
    """

    dtype: str
    channels: int
    sides: tuple[int, int]
    padding: tuple[int, int]
    columns: int | None
    elements: int | None


def refusal(found: DepthwiseShape, known: DepthwiseFacts) -> str | None:
    """Why kernels do not compute a depthwise convolution; None if they do."""
    down, across = found.sides
    pairs = zip(found.padding, found.sides, strict=True)
    is_few = found.dtype == "f32" and down * across < known.few_taps
    reasons = {
        f"of {found.dtype}, for which kernels were not timed": found.dtype not in known.types,
        f"of fewer than {known.least_channels} channels": found.channels < known.least_channels,
        "with a window of one pixel": down * across == 1,
        f"with a side of more than {MOST_SIDE} pixels": max(down, across) > MOST_SIDE,
        "with padding of a whole window": any(padding >= side for padding, side in pairs),
        f"with a window of fewer than {known.few_taps} pixels and images and results of more than"
        f" {known.most_few_tap_bytes} bytes": is_few
        and found.elements is not None
        and found.elements * _F32_BYTES > known.most_few_tap_bytes,
        "of rows of varying length": found.columns is None,
        f"of rows of fewer than {_LEAST_COLUMNS} or more than {MOST_COLUMNS} pixels": not (
            found.columns is None or _LEAST_COLUMNS <= found.columns <= MOST_COLUMNS
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
