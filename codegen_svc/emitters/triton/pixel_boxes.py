"""Tiles of boxes of pixels as Triton text: where they begin, and what tensor maps copy of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from codegen_svc.emitters.triton.block import BlockNames
from codegen_svc.emitters.triton.index import R_FLAT
from codegen_svc.emitters.triton.pixel_windows import MapAxis, PixelWindows
from codegen_svc.emitters.triton.tensor_maps import TensorMap
from kernelfarm.ir.loop_ir import Kernel, Load

R_MASK = BlockNames().masks[1]
_CHANNEL_OFFSET = "channel_offset"


def window_maps(kernel: Kernel, windows: PixelWindows, box: Sequence[int]) -> dict[int, TensorMap]:
    """The tensor maps of weight and image for tiles of boxes of pixels, by their loads' numbers."""
    weight, image = (kernel.body[number] for number in (windows.weight, windows.image))
    assert isinstance(weight, Load)  # of a product by windows
    assert isinstance(image, Load)
    sums = prod(tap.extent.as_int() for tap in windows.taps)
    rows = windows.product.rows[0].extent.as_int()
    channels = windows.first + windows.groups * windows.channels
    sides = dict(zip((axis.name for axis in windows.product.columns), map(str, box), strict=True))
    slices = {axis.name for axis in windows.slices}
    offsets = tuple(_pixel_offset(axis, slices) for axis in windows.axes)
    return {
        windows.weight: TensorMap(
            weight.param,
            (windows.groups * rows, sums),
            (sums,),
            False,
            ("XBLOCK", "KBLOCK"),
            ("xoffset" + _group_offset(windows, rows), _sum_offset(windows)),
        ),
        windows.image: TensorMap(
            image.param,
            (*(axis.extent for axis in windows.axes), channels),
            tuple(axis.stride for axis in windows.axes),
            True,
            (*(sides.get(axis.pixels, "1") for axis in windows.axes), "KBLOCK"),
            (*offsets, _first_channel(windows)),
            (*(axis.step for axis in windows.axes), 1),
        ),
    }


def _first_channel(windows: PixelWindows) -> str:
    """Where a step of the sum begins among the channels of all groups, as text."""
    begins = _CHANNEL_OFFSET + _group_offset(windows, windows.channels)
    return f"{begins} + {windows.first}" if windows.first else begins


def _group_offset(windows: PixelWindows, members: int) -> str:
    """What is added to a place within a group of so many members, as text."""
    return "" if windows.group is None else f" + {windows.group.name} * {members}"


def _sum_offset(windows: PixelWindows) -> str:
    """The first term of a step of the sum, as text."""
    text, inner = "koffset", 1
    for axis in reversed(windows.taps):
        if axis in windows.slices:
            text += f" + {axis.name} * {inner}"
        inner *= axis.extent.as_int()
    return text


def _pixel_offset(axis: MapAxis, slices: Collection[str]) -> str:
    """Where a box begins along an axis, as text; a slice's pixel of the window is its number."""
    parts = []
    if axis.pixels:
        begins = _box_offset(axis.pixels)
        parts.append(begins if axis.step == 1 else f"{begins} * {axis.step}")
    if axis.tap:
        tap = axis.tap if axis.tap in slices else _tap_offset(axis.tap)
        parts.append(tap if axis.dilation == 1 else f"{tap} * {axis.dilation}")
    text = " + ".join(parts)
    return f"{text} - {-axis.start}" if axis.start else text


def _box_offset(pixels: str) -> str:
    """The name of a tile's first pixel along an axis."""
    return f"{pixels}_offset"


def _tap_offset(tap: str) -> str:
    """The name of the pixel of a window at which a step of the sum is."""
    return f"{tap}_offset"


def first_pixel_lines(windows: PixelWindows, box: Sequence[int], number: str) -> list[str]:
    """Lines for the first pixels of a tile's box, by its number among the boxes."""
    lines, inner = [f"rtile = {number}"], 1
    axes = list(zip(windows.product.columns, windows.pixels, box, strict=True))
    for axis, extent, side in reversed(axes):
        within = "rtile" if inner == 1 else f"rtile // {inner}"
        tiles = -(-extent // side)
        inner *= tiles
        within += "" if axis is axes[0][0] else f" % {tiles}"
        lines.append(f"{_box_offset(axis.name)} = {within} * {side}")
    return lines


def pixel_lines(windows: PixelWindows, box: Sequence[int]) -> list[str]:
    """Lines for the pixels of a tile's box, and for those within the image."""
    lines, inner = ["point = tl.arange(0, RBLOCK)[None, :]"], 1
    terms: list[str] = []
    bounds: list[str] = []
    step = 1
    axes = list(zip(windows.product.columns, windows.pixels, box, strict=True))
    for axis, extent, side in reversed(axes):
        within = "point" if inner == 1 else f"point // {inner}"
        within += "" if axis is axes[0][0] else f" % {side}"
        pixel = f"({_box_offset(axis.name)} + {within})"
        terms.append(pixel if step == 1 else f"{pixel} * {step}")
        bounds += [f"({pixel} < {extent})"] if extent % side else []
        inner, step = inner * side, step * extent
    lines.append(f"{R_FLAT} = " + " + ".join(reversed(terms)))
    return lines + ([f"{R_MASK} = " + " & ".join(bounds)] if bounds else [])


def tap_lines(windows: PixelWindows) -> list[str]:
    """Lines for the pixel of a window, and the first channel, at which a step of the sum is."""
    *taps, channels = windows.taps[len(windows.slices) :]
    inner = channels.extent.as_int()
    lines = [f"{_CHANNEL_OFFSET} = koffset" + (f" % {inner}" if taps else "")]
    for tap in reversed(taps):
        within = f"koffset // {inner}" + ("" if tap is taps[0] else f" % {tap.extent.as_int()}")
        lines.append(f"{_tap_offset(tap.name)} = {within}")
        inner *= tap.extent.as_int()
    return lines
