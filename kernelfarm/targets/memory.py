"""Facts about a chip's memory, and about layouts and reductions, whose times it decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TwoPassLimits:
    """The longest rows that a chip reduces better in two passes than in one, in elements.

    `rows` run along the reduction in memory, `columns` across it; None: two passes are always
    better. `varying`: rows of varying length without an upper bound are reduced in one pass.
    """

    rows: int | None = None
    columns: int | None = None
    varying: bool = False


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """How a chip's memory moves data; the defaults are the smallest numbers of known chips.

    `sector_bytes` is the smallest piece that memory moves, `line_bytes` a line of the nearest
    cache. `request_points` threads or lanes access memory at the same time. A cache keeps up to
    `cache_bytes` that all cores read again, and is `cache_speedup` times as fast as memory. About
    `block_points` consecutive points are computed together. Tiles of points along two axes have
    sides of `tile_side_bytes` of the narrowest element; None: the chip's kernels have no tiles. A
    tile costs `tile_price` times what it moves. The nearest cache has `cache_sets` sets of
    `cache_ways` lines; None: blocks are in registers.

    With fewer than `saturating_programs`, each for a row or 128 columns of a reduction, a kernel
    does not use the whole bandwidth; None: reductions are never split. A launch takes as long as
    memory takes for `launch_bytes`. A reduction of up to `most_unrolled_elems` elements that are
    not adjacent in memory is written as pointwise operations on slices; None: none is.
    A kernel that moves `streamed_bytes` or more leaves nothing in the cache for the next one, so
    it may say what the cache keeps for its own speed; None: kernels do not.
    """

    sector_bytes: int = 32
    line_bytes: int = 64
    request_points: int = 16
    cache_bytes: int = 1048576
    cache_speedup: int = 2
    block_points: int = 1024
    tile_side_bytes: int | None = None
    tile_price: float = 1.0
    cache_sets: int | None = None
    cache_ways: int = 8
    saturating_programs: int | None = None
    launch_bytes: int = 4194304
    most_unrolled_elems: int | None = None
    streamed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ChannelsLastFacts:
    """What the framework's convolutions save on a chip if images are channels last.

    Savings are in bytes that memory moves in the same time, for each byte of the images that a
    convolution takes and gives: `narrow_saves` for elements of 16 bits, `wide_saves` for f32. They
    and `costs`, which channels last costs more, are by kind of convolution: `dense`, `strided` if
    the result has at most half the pixels along an axis, `grouped`, `depthwise`, and `few_channels`
    for up to 4 channels; a kind that is left out saves nothing.
    A convolution in one group of an image with up to `small_elems` elements saves nothing.
    For each byte of weights, a convolution that saves something also saves `weight_saves` and costs
    `weight_costs` more, unless both layouts of the weights are the same. `turn_costs` is
    what a kernel costs more for each byte that it reads in one layout and stores in the other, and
    `launch_bytes` what another kernel costs, beyond those that channels last saves in the
    framework. Without `has_gradients`, gradients of convolutions keep the layout that they have in
    eager.
    """

    narrow_saves: tuple[tuple[str, float], ...] = ()
    wide_saves: tuple[tuple[str, float], ...] = ()
    costs: tuple[tuple[str, float], ...] = ()
    small_elems: int | None = None
    weight_saves: float | None = None
    weight_costs: float | None = None
    turn_costs: float = 0.25
    launch_bytes: int | None = None
    has_gradients: bool = True
