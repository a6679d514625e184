"""The templates of depthwise convolutions, and of their gradients, for channels-last images.

A thread computes a tile of neighbouring pixels of a row for two or four channels. For each row of
the window it reads the pixels that the tile needs, once for all pixels of the window in that row,
so that it multiplies more often than it loads. Tiles below each other are in one program, which
reads most rows from the nearest cache. If that makes too few programs to fill a chip, tiles are
small. Sums are in f32, and rounded once. Pixels outside of an image are not read, so results and
images may have any extents.

The gradient of an image is a convolution of the result's gradient by the same window, which moves
backwards. The gradient of a weight is a sum over all pixels: each program adds those of its tiles
for one row of the window, and a kernel of prims adds the programs' sums.

Shapes:
    image: (n, c, h, w); weight: (down, across, c), row-major; bias: (c)
    result and its gradient: (n, c, rows, columns); what a template writes is (n, rows, columns, c)
    sums of a weight's gradient: (programs, down, across, c), f32
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, ceil_div
from kernelfarm.ir.triton.user_kernel import (
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
    Value,
)
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.depthwise_source import convolution_source, weight_source
from optimizer_svc.kernels.depthwise_tiles import PixelTile, Window, chosen_tile, made_tile

_WIDE_TILE = 8
"""Tiles of at least so many pixels are of two channels, others of four."""
_SMALL_TILE = 4
"""The pixels of a thread, of two channels each, where larger tiles would be too few."""
_WARPS = 4
_THREADS = 32 * _WARPS
_NARROW_LIMIT = (1 << 31) - 1
_LARGE_TILE = 256
"""2^31 tiles of so many elements take 1 TiB, more than a GPU has."""


@dataclass(frozen=True, slots=True)
class DepthwiseKernel:
    """A launch of a template: its kernel, and the values of the numbers that it takes."""

    kernel: UserKernel
    sizes: tuple[Expr, ...]


def depthwise_convolution(
    views: Mapping[str, StridedView],
    dtype: DType,
    result: tuple[Expr, ...],
    window: Window,
    filling: int,
    *,
    is_backwards: bool = False,
) -> DepthwiseKernel:
    """The template for operands in memory, by name: image, weight, and perhaps bias.

    `result` has the extents (n, c, rows, columns). So many programs fill a chip: `filling`. With
    `is_backwards`, the image is the gradient of a convolution's result, and the result that of its
    image. Grids are the last three sizes.
    """
    bias = views.get("bias")
    layout = _layout(result, window, filling, is_backwards=is_backwards)
    numbers = layout.numbers(views["image"]) | {
        "bias_first": ZERO if bias is None else bias.offset,
        "bias_step": ZERO if bias is None else bias.strides[0],
    }
    constants = layout.constants() | {
        "IS_FAR": _is_far(views["image"]),
        "DOWN": window.sides[0],
        "STEP_DOWN": window.strides[0],
        "ABOVE": window.padding[0],
        "HAS_BIAS": bias is not None,
    }
    pointers = [
        Pointer(name, dtype) if name in views or name == "out" else FixedParam(name, None)
        for name in ("image", "weight", "bias", "out")
    ]
    source = "".join(convolution_source(layout.tile, window, dtype, is_backwards=is_backwards))
    kernel, sizes = _kernel("depthwise", source, (pointers, numbers, constants), layout)
    return DepthwiseKernel(kernel, (*sizes, layout.programs, layout.blocks, ONE))


def weight_gradient(
    views: Mapping[str, StridedView], dtype: DType, programs: int, window: Window
) -> DepthwiseKernel:
    """The template for operands in memory, by name: gradient and image.

    `programs` divide the pixels of the result. Grids are the last three sizes.
    """
    gradient, image = views["gradient"], views["image"]
    layout = _Layout(gradient.shape, chosen_tile(gradient.shape[3], window))
    numbers = layout.numbers(image) | {
        "gradient_first": gradient.offset,
        "gradient_number": gradient.strides[0],
        "gradient_channel": gradient.strides[1],
        "gradient_row": gradient.strides[2],
        "gradient_column": gradient.strides[3],
        "steps": ceil_div(layout.count, layout.lines * programs),
    }
    constants = layout.constants() | {
        "IS_FAR": _is_far(image) or _is_far(gradient),
        "DOWN": window.sides[0],
        "STEP_DOWN": window.strides[0],
        "ABOVE": window.padding[0],
    }
    pointers = [
        Pointer("gradient", dtype),
        Pointer("image", dtype),
        Pointer("out", DType.F32),
    ]
    source = "".join(weight_source(layout.tile, window, dtype))
    kernel, sizes = _kernel("depthwise_weight", source, (pointers, numbers, constants), layout)
    down = as_expr(window.sides[0])
    return DepthwiseKernel(kernel, (*sizes, as_expr(programs), layout.blocks, down))


def weight_programs(
    gradient: tuple[Expr, ...], window: Window, programs: int, likely: Mapping[str, int]
) -> int:
    """How many programs divide the pixels for each block of channels and row of the window.

    All together are about `programs`, with at least four tiles for each thread.
    """
    layout = _Layout(gradient, chosen_tile(gradient[3], window))
    others = layout.blocks.as_int() * window.sides[0]
    count = layout.count.estimate(likely)
    return max(1, min(-(-programs // others), count // (4 * layout.lines)))


class _Layout:
    """How programs divide the pixels and channels of `shape` (n, c, rows, columns)."""

    def __init__(
        self, shape: tuple[Expr, ...], tile: PixelTile, elements: int | None = None
    ) -> None:
        if elements is None:
            elements = 2 if tile.width >= _WIDE_TILE else 4
        images, channels, self._rows, self._columns = shape
        self._channels, self.tile = channels.as_int(), tile
        self._tiles = ceil_div(self._columns, tile.width)
        self.count = images * self._tiles * self._rows
        self._block = _block(self._channels, elements)
        self.lines = _THREADS * elements // self._block
        self.is_wide = not _is_narrow(self.count, self._channels * tile.width)

    @property
    def programs(self) -> Expr:
        """The programs that divide the pixels if each has one block of tiles."""
        return ceil_div(self.count, self.lines)

    @property
    def blocks(self) -> Expr:
        """The programs that divide the channels."""
        return as_expr(-(-self._channels // self._block))

    def numbers(self, image: StridedView) -> dict[str, Expr]:
        """The numbers of a launch: extents, and where the image is that tiles read."""
        return {
            "count": self.count,
            "rows": self._rows,
            "columns": self._columns,
            "tiles": self._tiles,
            "height": image.shape[2],
            "width": image.shape[3],
            "image_first": image.offset,
            "image_number": image.strides[0],
            "image_channel": image.strides[1],
            "image_row": image.strides[2],
            "image_column": image.strides[3],
        }

    def constants(self) -> dict[str, Value]:
        """The constants of a kernel."""
        return {
            "CHANNELS": self._channels,
            "LINES": self.lines,
            "BLOCK": self._block,
            "IS_WIDE": self.is_wide,
        }


def _layout(
    result: tuple[Expr, ...], window: Window, filling: int, *, is_backwards: bool
) -> _Layout:
    """Large tiles, or small ones if there are fewer programs with large ones than fill a chip."""
    tile = chosen_tile(result[3], window, is_backwards=is_backwards)
    layout = _Layout(result, tile)
    programs = layout.programs * layout.blocks
    if not programs.is_constant or programs.constant >= filling or tile.width < _SMALL_TILE:
        return layout
    return _Layout(result, made_tile(_SMALL_TILE, window, is_backwards=is_backwards), elements=2)


_EXTENTS = ("count", "rows", "columns", "tiles", "height", "width", "steps")


def _kernel(
    entry: str,
    body: str,
    params: tuple[Sequence[UserParam], Mapping[str, Expr], Mapping[str, Value]],
    layout: _Layout,
) -> tuple[UserKernel, list[Expr]]:
    """The kernel of a body, and the numbers that its launch passes."""
    pointers, numbers, constants = params
    found: list[UserParam] = [*pointers]
    sizes = []
    for name, value in numbers.items():
        if value.is_constant:
            found.append(FixedParam(name, value.constant))
        else:
            is_narrow = name in _EXTENTS and not layout.is_wide
            found.append(Scalar(name, DType.I32 if is_narrow else DType.I64, 1))
            sizes.append(value)
    found += [FixedParam(name, value) for name, value in constants.items()]
    names = [*(p.name for p in pointers), *numbers, *(f"{c}: tl.constexpr" for c in constants)]
    listed = "".join(f"    {name},\n" for name in names)
    head = f"def {entry}(\n{listed}):\n"
    options = (("num_stages", 1), ("num_warps", _WARPS))
    return UserKernel(entry, head + body, entry, tuple(found), options), sizes


def _is_far(image: StridedView) -> bool:
    """True if rows of one image may lie further apart than numbers of 32 bits reach."""
    step = image.strides[0]
    return not step.is_constant or abs(step.constant) > _NARROW_LIMIT


def _is_narrow(count: Expr, elements: int) -> bool:
    """True if 32 bits hold the number of tiles, each of so many elements."""
    if count.is_constant:
        return count.constant <= _NARROW_LIMIT
    return elements >= _LARGE_TILE


def _block(channels: int, elements: int) -> int:
    """The channels of a program: 64 if few of them are unused, or as many as a row of threads."""
    wide, narrow = 64, 32
    is_full = -(-channels // wide) * wide <= -(-channels // narrow) * narrow
    block = wide if is_full else narrow
    return max(elements, min(block, 1 << (channels - 1).bit_length()))
