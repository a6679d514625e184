"""The template of depthwise convolutions of images whose channels are last in memory.

A thread computes a tile of neighbouring pixels of a row for two to four channels. For each row of
the window it reads the pixels of the image that the tile needs, once for all pixels of the window
in that row, so that it multiplies more often than it loads. Tiles below each other are in one
program, which reads most rows of the image from the nearest cache. Sums are in f32, and rounded
once. Pixels outside of the image are not read, so results and images may have any extents.

The source is written for a tile and a window: sums are variables, which stay in registers.

Shapes:
    image: (n, c, h, w); weight: (down, across, c), row-major; bias: (c)
    out: (n, rows, columns, c), row-major
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

MAX_READ = 48
"""The most pixels of a row of the image that a tile of several pixels reads."""
_ENTRY = "depthwise"
_TILES = (14, 16, 8, 7, 4, 2, 1)
_FEW_PIXELS = 8
"""Tiles of fewer pixels are of four channels instead of two."""
_WARPS = 4
_NARROW_LIMIT = (1 << 31) - 1
_LARGE_TILE = 256
"""2^31 tiles of so many elements take 1 TiB, more than a GPU has."""
_THREADS = 32 * _WARPS
_HEAD = """\
def depthwise(
    image, weight, bias, out,
    count, rows, columns, tiles, height, width,
    image_first, image_number, image_channel, image_row, image_column, bias_first, bias_step,
    CHANNELS: tl.constexpr, DOWN: tl.constexpr, STEP_DOWN: tl.constexpr, ABOVE: tl.constexpr,
    LEFT: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_WIDE: tl.constexpr,
):
    first_line = tl.program_id(0)
    if IS_WIDE:
        first_line = first_line.to(tl.int64)
    line = first_line * LINES + tl.arange(0, LINES)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = line % rows
    tile = line // rows % tiles
    number = (line // rows // tiles).to(tl.int64)
    own = (channel < CHANNELS)[None, :]
    exists = line < count
"""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution, each pair (down, across) in pixels."""

    sides: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DepthwiseConvolution:
    """A launch of the template: its kernel, and the values of the numbers that it takes."""

    kernel: UserKernel
    sizes: tuple[Expr, ...]


def depthwise_convolution(
    views: Mapping[str, StridedView], dtype: DType, result: tuple[Expr, ...], window: Window
) -> DepthwiseConvolution:
    """The template for operands in memory, by name: image, weight, and perhaps bias.

    `result` has the extents (n, c, rows, columns). Grids are the last three sizes.
    """
    image, bias = views["image"], views.get("bias")
    images, channels, rows, columns = result
    width = tile_width(columns, window)
    tiles = ceil_div(columns, width)
    count = images * tiles * rows
    elements = 4 if width < _FEW_PIXELS else 2
    block = _block(channels.as_int(), elements)
    lines = _THREADS * elements // block
    extents = {
        "count": count,
        "rows": rows,
        "columns": columns,
        "tiles": tiles,
        "height": image.shape[2],
        "width": image.shape[3],
    }
    numbers = extents | {
        "image_first": image.offset,
        "image_number": image.strides[0],
        "image_channel": image.strides[1],
        "image_row": image.strides[2],
        "image_column": image.strides[3],
        "bias_first": ZERO if bias is None else bias.offset,
        "bias_step": ZERO if bias is None else bias.strides[0],
    }
    is_wide = not _has_narrow_count(count, channels.as_int() * width)
    constants: dict[str, Value] = {
        "CHANNELS": channels.as_int(),
        "DOWN": window.sides[0],
        "STEP_DOWN": window.strides[0],
        "ABOVE": window.padding[0],
        "LEFT": window.padding[1],
        "LINES": lines,
        "BLOCK": block,
        "HAS_BIAS": bias is not None,
        "IS_WIDE": is_wide,
    }
    params: list[UserParam] = [
        Pointer(name, dtype) if name in views or name == "out" else FixedParam(name, None)
        for name in ("image", "weight", "bias", "out")
    ]
    sizes = []
    for name, value in numbers.items():
        if value.is_constant:
            params.append(FixedParam(name, value.constant))
        else:
            is_narrow = name in extents and not is_wide
            params.append(Scalar(name, DType.I32 if is_narrow else DType.I64, 1))
            sizes.append(value)
    params += [FixedParam(name, value) for name, value in constants.items()]
    options = (("num_stages", 1), ("num_warps", _WARPS))
    kernel = UserKernel(_ENTRY, _source(width, window), _ENTRY, tuple(params), options)
    blocks = as_expr(-(-channels.as_int() // block))
    return DepthwiseConvolution(kernel, (*sizes, ceil_div(count, lines), blocks, ONE))


def tile_width(columns: Expr, window: Window) -> int:
    """The pixels of a tile that need the fewest instructions for a row of so many pixels.

    A pixel of the image that is read takes about as long as two multiplications.
    """
    widths = [width for width in _TILES if width == 1 or len(_read(width, window)) <= MAX_READ]
    if not columns.is_constant:
        return widths[0]
    across = window.sides[1]
    return min(
        widths,
        key=lambda width: (
            -(-columns.constant // width) * (width * across + 2 * len(_read(width, window)))
        ),
    )


def _has_narrow_count(count: Expr, elements: int) -> bool:
    """True if 32 bits hold the number of tiles, each of so many elements."""
    if count.is_constant:
        return count.constant <= _NARROW_LIMIT
    return elements >= _LARGE_TILE


def _read(width: int, window: Window) -> list[int]:
    """The pixels of a row of the image that a tile reads, from its first one on."""
    starts = range(0, width * window.strides[1], window.strides[1])
    return sorted({start + k for start in starts for k in range(window.sides[1])})


def _block(channels: int, elements: int) -> int:
    """The channels of a program: 64 if few of them are unused, or as many as a row of threads."""
    wide, narrow = 64, 32
    is_full = -(-channels // wide) * wide <= -(-channels // narrow) * narrow
    block = wide if is_full else narrow
    return max(elements, min(block, 1 << (channels - 1).bit_length()))


def _source(width: int, window: Window) -> str:
    return _HEAD + "".join(f"    {line}\n" for line in _lines(width, window))


def _lines(width: int, window: Window) -> Iterator[str]:
    step, across = window.strides[1], window.sides[1]
    read = _read(width, window)
    yield f"first = tile * {width * step} - LEFT"
    yield "base = image + image_first + (number * image_number + first * image_column)[:, None]"
    yield "base += (channel * image_channel)[None, :]"
    for t in range(width):
        yield f"sum{t} = tl.zeros([LINES, BLOCK], tl.float32)"
    for x in read:
        yield f"has{x} = exists & (first + {x} >= 0) & (first + {x} < width)"
    yield "for down in range(DOWN):"
    yield "    y = row * STEP_DOWN - ABOVE + down"
    yield "    inside = (y >= 0) & (y < height)"
    yield "    at = base + (y * image_row)[:, None]"
    yield f"    near = weight + down * ({across} * CHANNELS) + channel"
    for k in range(across):
        yield f"    w{k} = tl.load(near + {k} * CHANNELS, mask=channel < CHANNELS, other=0.0)"
        yield f"    w{k} = w{k}.to(tl.float32)[None, :]"
    for x in read:
        yield f"    mask = (inside & has{x})[:, None] & own"
        yield f"    pixel = tl.load(at + {x} * image_column, mask=mask, other=0.0).to(tl.float32)"
        for t in range(width):
            if 0 <= x - t * step < across:
                yield f"    sum{t} += pixel * w{x - t * step}"
    yield "if HAS_BIAS:"
    yield "    near = bias + bias_first + channel * bias_step"
    yield "    added = tl.load(near, mask=channel < CHANNELS, other=0.0)"
    yield "    added = added.to(tl.float32)[None, :]"
    for t in range(width):
        yield f"    sum{t} += added"
    yield f"pixels = (number * rows + row) * columns + tile * {width}"
    yield "to = out + (pixels * CHANNELS)[:, None] + channel[None, :]"
    for t in range(width):
        yield f"mask = (exists & (tile * {width} + {t} < columns))[:, None] & own"
        yield f"tl.store(to + {t} * CHANNELS, sum{t}.to(out.dtype.element_ty), mask=mask)"
