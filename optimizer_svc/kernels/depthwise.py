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

Sources are written for a tile and a window: sums are variables, which stay in registers.

Shapes:
    image: (n, c, h, w); weight: (down, across, c), row-major; bias: (c)
    result and its gradient: (n, c, rows, columns); what a template writes is (n, rows, columns, c)
    sums of a weight's gradient: (programs, down, across, c), f32
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

_MAX_READ = 48
"""The most pixels of a row that a tile of several pixels reads."""
_TILES = (14, 16, 8, 7, 4, 2, 1)
_MAX_STRIDED_READ = 24
"""The same for strides of several pixels: with more, the programs of a multiprocessor read so many
rows at a time that its cache loses them."""
_WIDE_TILE = 8
"""Tiles of at least so many pixels are of two channels, others of four."""
_SMALL_TILE = 4
"""The pixels of a thread, of two channels each, where larger tiles would be too few."""
_WARPS = 4
_THREADS = 32 * _WARPS
_NARROW_LIMIT = (1 << 31) - 1
_LARGE_TILE = 256
"""2^31 tiles of so many elements take 1 TiB, more than a GPU has."""
_TILE_OF_BLOCK = """\
    first_line = tl.program_id(0)
    if IS_WIDE:
        first_line = first_line.to(tl.int64)
    line = first_line * LINES + tl.arange(0, LINES)
"""
_POSITION = """\
row = line % rows
tile = line // rows % tiles
number = (line // rows // tiles).to(tl.int64)
exists = line < count
"""
_CHANNEL = """\
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = (channel < CHANNELS)[None, :]
"""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution, each pair (down, across) in pixels."""

    sides: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DepthwiseKernel:
    """A launch of a template: its kernel, and the values of the numbers that it takes."""

    kernel: UserKernel
    sizes: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
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
        "DOWN": window.sides[0],
        "STEP_DOWN": window.strides[0],
        "ABOVE": window.padding[0],
        "HAS_BIAS": bias is not None,
    }
    pointers = [
        Pointer(name, dtype) if name in views or name == "out" else FixedParam(name, None)
        for name in ("image", "weight", "bias", "out")
    ]
    source = "".join(_convolution_source(layout.tile, window, is_backwards=is_backwards))
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
        "DOWN": window.sides[0],
        "STEP_DOWN": window.strides[0],
        "ABOVE": window.padding[0],
    }
    pointers = [
        Pointer("gradient", dtype),
        Pointer("image", dtype),
        Pointer("out", DType.F32),
    ]
    source = "".join(_weight_source(layout.tile, window))
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
    count = layout.count.evaluate(likely)
    return max(1, min(-(-programs // others), count // (4 * layout.lines)))


def chosen_tile(columns: Expr, window: Window, *, is_backwards: bool = False) -> _Tile:
    """The tile that needs the fewest instructions for a row of so many pixels."""
    found = [_made(width, window, is_backwards=is_backwards) for width in _TILES]
    most = _MAX_READ if window.strides[1] == 1 or is_backwards else _MAX_STRIDED_READ
    tiles = [t for t in found if len(t.taps) <= most] or found[-1:]
    if not columns.is_constant:
        return tiles[0]
    return min(tiles, key=lambda tile: -(-columns.constant // tile.width) * tile.cost)


def _made(width: int, window: Window, *, is_backwards: bool) -> _Tile:
    """A tile of about so many pixels."""
    if not is_backwards:
        return _tile(width, window)
    step = window.strides[1]
    return _tile_backwards(max(width // step, 1) * step, window)


def _tile(width: int, window: Window) -> _Tile:
    step, left = window.strides[1], window.padding[1]
    taps: dict[int, list[tuple[int, int]]] = {}
    for t in range(width):
        for k in range(window.sides[1]):
            taps.setdefault(t * step + k - left, []).append((t, k))
    return _Tile(width, width * step, dict(sorted(taps.items())))


def _tile_backwards(width: int, window: Window) -> _Tile:
    """The pixels of the result that each pixel of the image is a part of.

    `width` is a multiple of the step.
    """
    step, left = window.strides[1], window.padding[1]
    taps: dict[int, list[tuple[int, int]]] = {}
    for t in range(width):
        for k in range(window.sides[1]):
            if (t + left - k) % step == 0:
                taps.setdefault((t + left - k) // step, []).append((t, k))
    return _Tile(width, width // step, dict(sorted(taps.items())))


class _Layout:
    """How programs divide the pixels and channels of `shape` (n, c, rows, columns)."""

    def __init__(self, shape: tuple[Expr, ...], tile: _Tile, elements: int | None = None) -> None:
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
    if not programs.is_constant or programs.constant >= filling or tile.width <= _SMALL_TILE:
        return layout
    return _Layout(result, _made(_SMALL_TILE, window, is_backwards=is_backwards), elements=2)


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
    head = f"def {entry}(\n{_indented([f'{name},' for name in names], 1)}):\n"
    options = (("num_stages", 1), ("num_warps", _WARPS))
    return UserKernel(entry, head + body, entry, tuple(found), options), sizes


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


def _indented(lines: Iterator[str] | Sequence[str], depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in lines)


def _convolution_source(tile: _Tile, window: Window, *, is_backwards: bool) -> Iterator[str]:
    yield _TILE_OF_BLOCK + _CHANNEL
    yield _indented(_POSITION.splitlines(), 1)
    yield _indented(_convolution(tile, window, is_backwards=is_backwards), 1)


def _convolution(tile: _Tile, window: Window, *, is_backwards: bool) -> Iterator[str]:
    across = window.sides[1]
    yield f"first = tile * {tile.advance}"
    yield from _base("image")
    for t in range(tile.width):
        yield f"sum{t} = tl.zeros([LINES, BLOCK], tl.float32)"
    yield from _columns_inside(tile)
    yield "for down in range(DOWN):"
    if is_backwards:
        yield "    y = row + ABOVE - down"
        yield "    inside = (y >= 0) & (y % STEP_DOWN == 0)"
        yield "    y = y // STEP_DOWN"
        yield "    inside = inside & (y < height)"
    else:
        yield "    y = row * STEP_DOWN - ABOVE + down"
        yield "    inside = (y >= 0) & (y < height)"
    yield "    at = base + (y * image_row)[:, None]"
    yield f"    near = weight + down * ({across} * CHANNELS) + channel"
    for k in range(across):
        yield f"    w{k} = tl.load(near + {k} * CHANNELS, mask=channel < CHANNELS, other=0.0)"
        yield f"    w{k} = w{k}.to(tl.float32)[None, :]"
    for number, (x, taps) in enumerate(tile.taps.items()):
        yield from _pixel(number, x)
        for t, k in taps:
            yield f"    sum{t} += pixel * w{k}"
    yield "if HAS_BIAS:"
    yield "    near = bias + bias_first + channel * bias_step"
    yield "    added = tl.load(near, mask=channel < CHANNELS, other=0.0)"
    yield "    added = added.to(tl.float32)[None, :]"
    for t in range(tile.width):
        yield f"    sum{t} += added"
    yield f"pixels = (number * rows + row) * columns + tile * {tile.width}"
    yield "to = out + (pixels * CHANNELS)[:, None] + channel[None, :]"
    for t in range(tile.width):
        yield f"mask = (exists & (tile * {tile.width} + {t} < columns))[:, None] & own"
        yield f"tl.store(to + {t} * CHANNELS, sum{t}.to(out.dtype.element_ty), mask=mask)"


def _base(name: str) -> Iterator[str]:
    """The address of the column `first` of a tile's image, in its row 0."""
    yield f"base = {name} + {name}_first"
    yield f"base += (number * {name}_number + first * {name}_column)[:, None]"
    yield f"base += (channel * {name}_channel)[None, :]"


def _columns_inside(tile: _Tile) -> Iterator[str]:
    for number, x in enumerate(tile.taps):
        yield f"has{number} = exists & (first + {x} >= 0) & (first + {x} < width)"


def _pixel(number: int, x: int) -> Iterator[str]:
    yield f"    mask = (inside & has{number})[:, None] & own"
    yield f"    pixel = tl.load(at + {x} * image_column, mask=mask, other=0.0).to(tl.float32)"


def _weight_source(tile: _Tile, window: Window) -> Iterator[str]:
    yield _CHANNEL
    yield _indented(_weight(tile, window), 1)


def _weight(tile: _Tile, window: Window) -> Iterator[str]:
    across = window.sides[1]
    yield "down = tl.program_id(2)"
    yield "program = tl.program_id(0)"
    yield "if IS_WIDE:"
    yield "    program = program.to(tl.int64)"
    for k in range(across):
        yield f"sum{k} = tl.zeros([LINES, BLOCK], tl.float32)"
    yield "for step in range(steps):"
    inner = [
        "line = (program * steps + step) * LINES + tl.arange(0, LINES)",
        *_POSITION.splitlines(),
        "y = row * STEP_DOWN - ABOVE + down",
        "inside = exists & (y >= 0) & (y < height)",
        f"first = tile * {tile.width}",
        *_base("gradient"),
        "at = base + (row * gradient_row)[:, None]",
    ]
    for t in range(tile.width):
        inner.append(f"mask = (inside & (first + {t} < columns))[:, None] & own")
        inner.append(
            f"g{t} = tl.load(at + {t} * gradient_column, mask=mask, other=0.0).to(tl.float32)"
        )
    inner.append(f"first = tile * {tile.advance}")
    inner += [*_base("image"), *_columns_inside(tile), "at = base + (y * image_row)[:, None]"]
    for number, (x, taps) in enumerate(tile.taps.items()):
        inner += [line[4:] for line in _pixel(number, x)]
        inner += [f"sum{k} += pixel * g{t}" for t, k in taps]
    yield from (f"    {line}" for line in inner)
    yield f"to = out + (tl.program_id(0) * DOWN + down) * ({across} * CHANNELS) + channel"
    for k in range(across):
        yield f"tl.store(to + {k} * CHANNELS, tl.sum(sum{k}, 0), mask=channel < CHANNELS)"
