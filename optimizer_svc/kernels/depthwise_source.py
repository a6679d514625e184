"""The source text of the templates of depthwise convolutions, written for a tile and a window.

Sums are variables, which stay in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelfarm.dtypes import DType
from optimizer_svc.kernels.depthwise_tiles import PixelTile, Window

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
if IS_FAR:
    row = row.to(tl.int64)
"""
_CHANNEL = """\
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = (channel < CHANNELS)[None, :]
"""


def _indented(lines: Iterator[str] | Sequence[str], depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in lines)


def convolution_source(
    tile: PixelTile, window: Window, dtype: DType, *, is_backwards: bool
) -> Iterator[str]:
    """Pieces of the body of a convolution, or of the gradient of an image if `is_backwards`."""
    yield _TILE_OF_BLOCK + _CHANNEL
    yield _indented(_POSITION.splitlines(), 1)
    yield _indented(_convolution(tile, window, dtype, is_backwards=is_backwards), 1)


def _convolution(
    tile: PixelTile, window: Window, dtype: DType, *, is_backwards: bool
) -> Iterator[str]:
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
        yield f"    w{k} = {_wide(f'w{k}', dtype)}[None, :]"
    for number, (x, taps) in enumerate(tile.taps.items()):
        yield from (f"    {line}" for line in _pixel(number, x, dtype))
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


def _columns_inside(tile: PixelTile) -> Iterator[str]:
    for number, x in enumerate(tile.taps):
        yield f"has{number} = exists & (first + {x} >= 0) & (first + {x} < width)"


def _pixel(number: int, x: int, dtype: DType) -> Iterator[str]:
    yield f"mask = (inside & has{number})[:, None] & own"
    yield f"pixel = tl.load(at + {x} * image_column, mask=mask, other=0.0)"
    yield f"pixel = {_wide('pixel', dtype)}"


def _wide(name: str, dtype: DType) -> str:
    """A number as f32.

    The bits of a bf16 are the upper half of those of the f32: of a pair in a register, one takes a
    shift and one a mask. A conversion takes three instructions for both.
    """
    if dtype is not DType.BF16:
        return f"{name}.to(tl.float32)"
    return f"({name}.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)"


def weight_source(tile: PixelTile, window: Window, dtype: DType) -> Iterator[str]:
    """Pieces of the body of a weight's gradient."""
    yield _CHANNEL
    yield _indented(_weight(tile, window, dtype), 1)


def _weight(tile: PixelTile, window: Window, dtype: DType) -> Iterator[str]:
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
        inner.append(f"g{t} = tl.load(at + {t} * gradient_column, mask=mask, other=0.0)")
        inner.append(f"g{t} = {_wide(f'g{t}', dtype)}")
    inner.append(f"first = tile * {tile.advance}")
    inner += [*_base("image"), *_columns_inside(tile), "at = base + (y * image_row)[:, None]"]
    for number, (x, taps) in enumerate(tile.taps.items()):
        inner += _pixel(number, x, dtype)
        inner += [f"sum{k} += pixel * g{t}" for t, k in taps]
    yield from (f"    {line}" for line in inner)
    yield f"to = out + (tl.program_id(0) * DOWN + down) * ({across} * CHANNELS) + channel"
    for k in range(across):
        yield f"tl.store(to + {k} * CHANNELS, tl.sum(sum{k}, 0), mask=channel < CHANNELS)"
