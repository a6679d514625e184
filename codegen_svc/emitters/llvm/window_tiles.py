"""How a processor divides the weighted sums of windows: blocks of channels, and tiles of pixels.

A tile has a vector of channels of some neighbouring pixels of a row of results. Its sums stay in
registers while a loop takes the rows of the window: a step reads each column of the image's row
once, and multiplies it by the weights of all columns of the window that meet a pixel of the tile
there. Which pixels are within the image is known for each tile, so nothing is masked: tiles at the
ends of a row have code of their own, those between them are a loop.

A unit is a row of results, for a block of channels: whole lines of the image's memory, with AVX-512
one vector. The blocks of a row follow each other, so that a cache gets all that they read together
once. The last channels that fill no vector have shorter vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from codegen_svc.emitters.llvm.text import FLOAT
from kernelfarm.ir.algebra.expr import ceil_div
from kernelfarm.ir.loop_ir import Axis, Kernel
from kernelfarm.ir.window_sums import WindowSum, WindowSums, find_window_sums

BLOCK: Final = "channel.block"
"""The blocks of channels. No axis of a kernel has this name."""
_REGISTERS: Final = {128: 32, 256: 16, 512: 32}
"""Vectors that a processor has, by their bits."""
_MOST_PIXELS: Final = {128: 24, 256: 12, 512: 20}
"""With 24 sums and weights of 7 columns, LLVM keeps sums on the stack: 1.08 times the time."""
_LEAST_PIXELS: Final = 4
_LATENCY_SUMS: Final = 8
"""Sums that are computed together without waiting for each other: two in a cycle, each of which
takes four."""
_LINE_BYTES: Final = 64
_ONE_VECTOR_BLOCKS: Final = frozenset({512})
"""Vectors, by their bits, that are blocks of their own. Sums of a row stay in the first-level cache
beside the image's rows: 672 channels of bf16 take 0.9 of the time of longer blocks."""
_SUM_BYTES: Final = 4
_MOST_ROW_BYTES: Final = 64 * 1024
"""Of the sums of a row of results, which are on the stack."""
_MOST_PRODUCTS: Final = 6000
"""Multiply-adds in the code of a kernel: LLVM takes about 0.1 ms for each."""


@dataclass(frozen=True, slots=True)
class TileRun:
    """Successive tiles of so many `pixels` from pixel `first` on, with one code.

    All columns of the window are within the image for all pixels of a run of several tiles.
    """

    first: int
    pixels: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Vectors of so many `lanes` in the last block, from the channel `first` on."""

    first: int
    lanes: int


@dataclass(frozen=True)
class TiledWindows:
    """The division of a kernel's sums for vectors of so many `lanes`.

    A block has the channels of `block_vectors`.
    """

    windows: WindowSums
    lanes: int
    block_vectors: int
    runs: dict[int, tuple[TileRun, ...]]

    @property
    def block_channels(self) -> int:
        """The channels of a block; the last one may have fewer."""
        return self.lanes * self.block_vectors

    @property
    def whole_channels(self) -> int:
        """The channels that fill vectors."""
        return self.windows.channels.extent.constant // self.lanes * self.lanes

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The vectors of the channels behind whole vectors: halves, and halves of these."""
        return _pieces(self.whole_channels, self.windows.channels.extent.constant, self.lanes)

    @property
    def row_channels(self) -> int:
        """The channels of a row's sums on the stack: those of a block, or all if there is one."""
        extent = self.windows.channels.extent.constant
        return min(self.block_channels, _rounded_up(extent, self.lanes))

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        extent: int = self.windows.channels.extent.constant
        return -(-extent // self.block_channels)

    @property
    def last_channels(self) -> int:
        """The channels of the last block."""
        extent: int = self.windows.channels.extent.constant
        return extent - (self.blocks - 1) * self.block_channels

    @property
    def units(self) -> tuple[Axis, ...]:
        """The axes of the units, the fastest last: the blocks of a row of results."""
        windows = self.windows
        blocks = Axis(BLOCK, ceil_div(windows.channels.extent, self.block_channels))
        if windows.lines is None:
            return (*windows.others, blocks)
        before = tuple(axis for axis in windows.others if axis is not windows.lines)
        return (*before, windows.lines, blocks)


def tiled_windows(kernel: Kernel, vector_bits: int) -> TiledWindows | None:
    """How a processor with vectors of so many bits sums a kernel's windows; None: it does not."""
    registers = _REGISTERS.get(vector_bits)
    windows = find_window_sums(kernel) if registers is not None else None
    if windows is None or registers is None:
        return None
    lanes = vector_bits // (8 * _SUM_BYTES)
    # Beside the sums, registers hold the weights of a row of the window, and a pixel of the image.
    most = min(registers - windows.window_columns - 1, _MOST_PIXELS[vector_bits])
    most = max(most, _LATENCY_SUMS)
    runs = {each.number: _runs(windows, each, most) for each in windows.sums}
    vectors = _block_vectors(windows, lanes, are_short=vector_bits in _ONE_VECTOR_BLOCKS)
    if vectors is None:
        return None
    found = TiledWindows(windows, lanes, vectors, runs)
    return found if _products(found) <= _MOST_PRODUCTS else None


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _pieces(first: int, end: int, lanes: int) -> tuple[Piece, ...]:
    found = []
    while first < end:
        lanes //= 2
        if lanes <= end - first:
            found.append(Piece(first, lanes))
            first += lanes
    return tuple(found)


def _block_vectors(windows: WindowSums, lanes: int, *, are_short: bool) -> int | None:
    """The vectors of a block: one, or a line of the image or more.

    None: a row's sums are too large.
    """
    item = min(each.image.dtype.itemsize_bytes for each in windows.sums)
    least = max(1, _LINE_BYTES // (item * lanes))
    vectors = -(-windows.channels.extent.constant // lanes)
    row_bytes = windows.pixels.extent.constant * lanes * _SUM_BYTES * len(windows.sums)
    most = _MOST_ROW_BYTES // row_bytes
    if not most:
        return None
    if are_short:
        return 1
    if vectors <= 2 * least:
        return int(min(vectors, most))
    whole = [n for n in range(least, 2 * least + 2) if vectors % n == 0]
    return min(whole[0] if whole else least, most)


def _runs(windows: WindowSums, each: WindowSum, most: int) -> tuple[TileRun, ...]:
    """The tiles of a row of results, of at most so many pixels."""
    extent = windows.pixels.extent.constant
    whole = [
        all(each.has_pixel(windows, pixel, at) for at in range(windows.window_columns))
        for pixel in range(extent)
    ]
    choices = [_runs_of(whole, pixels) for pixels in range(most, _LEAST_PIXELS - 1, -1)]
    return min(choices, key=lambda runs: (_cost(runs), len(runs)))


def _runs_of(whole: list[bool], pixels: int) -> tuple[TileRun, ...]:
    """The tiles of so many pixels, the last one of fewer, with equal neighbours as one run."""
    runs: list[TileRun] = []
    is_whole_run = False
    for first in range(0, len(whole), pixels):
        own = whole[first : first + pixels]
        is_whole = all(own)
        before = runs[-1] if runs else None
        if before is not None and is_whole and is_whole_run and before.pixels == len(own):
            runs[-1] = TileRun(before.first, before.pixels, before.count + 1)
        else:
            runs.append(TileRun(first, len(own), 1))
        is_whole_run = is_whole
    return tuple(runs)


def _cost(runs: tuple[TileRun, ...]) -> int:
    """The time of a row: a tile of few pixels takes as long as one of more."""
    return sum(run.count * max(run.pixels, _LATENCY_SUMS) for run in runs)


def _products(found: TiledWindows) -> int:
    """The multiply-adds of a row of the window, in the code of all tiles."""
    columns = found.windows.window_columns
    of_row = sum(run.pixels * columns for runs in found.runs.values() for run in runs)
    versions = len(found.pieces) + (1 if found.whole_channels else 0)
    return of_row * versions


def vector_type(lanes: int) -> str:
    """LLVM's type of a vector of f32."""
    return f"<{lanes} x {FLOAT}>"
