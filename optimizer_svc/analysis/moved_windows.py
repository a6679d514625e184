"""Convolutions of images whose windows have several pixels, or are not at each pixel.

A GPU computes them as products: the pixels of all windows by the weight. Hardware copies boxes of
pixels and gives zeros past the ends of an image, so nothing is stored for windows or padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelfarm.ir.algebra.expr import product_of
from kernelfarm.ir.extern_rule import is_window
from kernelfarm.ir.graph_ir import Node, TensorType
from kernelfarm.targets import ConvolutionFacts, GpuFacts
from optimizer_svc.analysis.verdicts import Refused

_MOST_FEW_CHANNELS = 4
_PIXEL_BYTES, _ELEMENT_BYTES = 16, 2
_EVEN_CHANNELS = 8
# On an H200: a tile of 64 results takes 0.66 times as long as one of 128 (11,520 terms). A sum is
# stored and read as fast as memory moves 8 bytes, and another launch takes 2.5 microseconds.
_TILE, _HALF_TILE = 128, 0.66
_LAUNCH_CYCLES, _SLICE_CYCLES = 4500, 8 / 2300
_MOST_SLICES = 25
"""Windows of 3 x 3 pixels were timed, of 5 x 5 compiled."""
_LEAST_TERMS = 32
"""Judgement: the fewest terms of a step of a sum that hide its own instructions."""


@dataclass(frozen=True, slots=True)
class MovedWindow:
    """How the window of a convolution moves, each (down, across), in pixels.

    Neighbours in the window are `dilations` pixels of the image apart. Each of `groups` of results
    is computed from a group of the image's channels.
    """

    sides: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def spans(self) -> tuple[int, int]:
        """The pixels of an image from a window's first pixel to its last one."""
        down, across = (
            dilation * (side - 1) + 1
            for dilation, side in zip(self.dilations, self.sides, strict=True)
        )
        return down, across


def moved_window(node: Node, weight: TensorType) -> MovedWindow | Refused:
    """How the window of a convolution moves; why kernels compute no such convolution."""
    numbers = node.attr("window")
    if not is_window(numbers) or not isinstance(numbers, tuple):
        return Refused("of other operands")
    down, across, *padding, wide_down, wide_across, groups = (int(str(n)) for n in numbers)
    extents = weight.shape[2:]
    if not all(side.is_constant and side.constant > 0 for side in extents):
        return Refused("by a window of varying size")
    if not down * across * wide_down * wide_across:
        return Refused("of other operands")
    sides = extents[0].constant, extents[1].constant
    # One pixel has no neighbours that a dilation could move away.
    dilations = wide_down if sides[0] > 1 else 1, wide_across if sides[1] > 1 else 1
    return MovedWindow(sides, (down, across), (padding[0], padding[1]), dilations, groups)


@dataclass(frozen=True, slots=True)
class FewChannels:
    """An image of few channels, such as red, green and blue, as it is stored for its windows.

    It has margins of zeros and `channels`, some of which are zeros, too. So the rows of a window,
    with `across` pixels, are neighbours in memory, and begin at multiples of 16 bytes.
    """

    channels: int
    across: int
    height: int
    width: int


def few_channels(window: MovedWindow, image: TensorType, result: TensorType) -> FewChannels | None:
    """How an image of few channels is stored; None if it has more.

    None, too, if dilation or groups divide the rows of its window, which are no neighbours in
    memory then.
    """
    given = image.shape[1].constant
    if given > _MOST_FEW_CHANNELS or window.dilations[1] > 1 or window.groups > 1:
        return None
    step = window.strides[1] * _ELEMENT_BYTES
    channels = next(c for c in (4, 8) if c >= given and c * step % _PIXEL_BYTES == 0)
    terms = max(_LEAST_TERMS, 1 << (window.sides[1] * channels - 1).bit_length())
    across = terms // channels
    down, right = (
        max((made.constant - 1) * stride + side, extent.constant + padding)
        for made, stride, side, extent, padding in zip(
            result.shape[2:],
            window.strides,
            (window.spans[0], across),
            image.shape[2:],
            window.padding,
            strict=True,
        )
    )
    return FewChannels(channels, across, down, right + right % 2)


def window_refused(
    window: MovedWindow, kinds: tuple[TensorType, ...], known: ConvolutionFacts
) -> Refused | None:
    """Why kernels compute no convolution by such a window; None if they can.

    `kinds` are the types of the image, of the weight and of the result.
    """
    image, weight, result = kinds
    if image.dtype.value not in known.windows:
        return Refused(f"by a window of {image.dtype.value}, for which kernels were not timed")
    if not all(extent.is_constant for kind in kinds for extent in kind.shape):
        return Refused("by a window, of varying sizes")
    if not _moves_so(window, image, weight, result):
        return Refused("of other operands")
    if any(padding >= span for padding, span in zip(window.padding, window.spans, strict=True)):
        return Refused("with padding of a whole window")
    if window.groups > 1:
        return _groups_refused(window, weight, known)
    is_stored_anew = few_channels(window, image, result) is not None
    refused = None if is_stored_anew else _channels_refused(image.shape[1].constant, known)
    is_odd = weight.shape[0].constant % _EVEN_CHANNELS > 0
    return Refused("by a window, of an odd number of results") if is_odd else refused


def _groups_refused(
    window: MovedWindow, weight: TensorType, known: ConvolutionFacts
) -> Refused | None:
    """Why tiles of results and steps of a sum cannot be within groups; None if they can.

    Steps that cross groups would multiply other groups' channels by zeros: NaN and infinities of
    one group would reach the others' results.
    """
    multiple = known.group_channels
    if not multiple:
        return Refused("of groups")
    if window.sides == window.strides == (1, 1):
        return Refused("of one pixel, of groups")
    members = weight.shape[0].constant // window.groups, weight.shape[1].constant
    if any(count % multiple for count in members):
        return Refused(f"of groups, whose channels or results are no multiples of {multiple}")
    if min(members) < known.least_group_channels:
        return Refused(f"of groups of fewer than {known.least_group_channels} channels or results")
    return None


def _channels_refused(channels: int, known: ConvolutionFacts) -> Refused | None:
    """Why a sum cannot take the channels of an image as memory holds them; None if it can."""
    if channels <= _MOST_FEW_CHANNELS:
        return Refused(f"with dilation, of up to {_MOST_FEW_CHANNELS} channels")
    multiple = known.window_channels
    if channels % multiple:
        return Refused(f"by a window, whose channels are no multiples of {multiple}")
    return None


def split_taps(window: MovedWindow, weight: TensorType, result: TensorType, gpu: GpuFacts) -> int:
    """The number of axes of a window, rows first, whose pixels are slices of the sum.

    With slices, more tiles are computed at the same time, if there are few. But a kernel stores
    their sums, and another one adds them: code and memory grow with their number.
    """
    counts = [count for count in range(3) if prod(window.sides[:count]) <= _MOST_SLICES]
    return min(counts, key=lambda count: _cycles(window, weight, result, gpu, count))


def _cycles(
    window: MovedWindow, weight: TensorType, result: TensorType, gpu: GpuFacts, count: int
) -> float:
    """The estimated time with slices along so many axes, in cycles."""
    results, terms = (product_of(shape).constant for shape in (result.shape, weight.shape[1:]))
    slices = prod(window.sides[:count])
    channels = weight.shape[0].constant
    rows = window.groups * -(-channels // window.groups // _TILE)
    tiles = -(-results // channels // _TILE) * rows * slices
    programs = gpu.multiprocessors or tiles
    waves = min(-(-tiles // programs), _HALF_TILE * -(-2 * tiles // programs))
    step = _TILE * _TILE / gpu.multiply_adds_per_cycle if gpu.multiply_adds_per_cycle else 1.0
    added = _LAUNCH_CYCLES + slices * results * _SLICE_CYCLES if count else 0.0
    return waves * terms / slices * step + added


def _moves_so(
    window: MovedWindow, image: TensorType, weight: TensorType, result: TensorType
) -> bool:
    """True if the extents are those of a convolution by the window."""
    channels = image.shape[1].constant, result.shape[1].constant
    if image.shape[0] is not result.shape[0] or result.shape[1] is not weight.shape[0]:
        return False
    if channels[0] != weight.shape[1].constant * window.groups or channels[1] % window.groups:
        return False
    return all(
        (given.constant + 2 * padding - span) // stride + 1 == made.constant > 0
        for given, made, span, stride, padding in zip(
            image.shape[2:],
            result.shape[2:],
            window.spans,
            window.strides,
            window.padding,
            strict=True,
        )
    )
