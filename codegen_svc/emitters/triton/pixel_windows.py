"""Products by the pixels of windows: convolutions of images whose channels are adjacent in memory.

    sum over (r, s, c) of weight[k, r, s, c] * image[n, h * step + r * dilation - padding, ..., c]

A tile of results has the pixels of a box, such as 2 images x 8 x 8 pixels, and some channels k. For
a pixel (r, s) of the window, the image's elements for such a tile are a box of the image, too. So a
tensor map copies them for some channels c, and gives zeros for what is padding.

The image is the right factor: Triton takes the box from shared memory as it is there, which for a
left one it copies to registers first.

A convolution may have groups: a tile belongs to one of them, and the sum runs over its channels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import gcd, prod

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.contractions import ALL_FACTORS, Contraction, find_contraction
from kernelfarm.ir.loop_ir import Axis, Kernel, Load
from kernelfarm.ir.masked_loads import masked_load

MOST_AXES = 5
"""CUDA Driver API, cuTensorMapEncodeTiled: the axes of a map, and the elements of a box's side."""
MOST_STEP = 8
_MOST_SIDE = 256
_ELEMENT_BYTES, _ROW_BYTES = 2, 16
_MATRIX_AXES = 3


@dataclass(frozen=True, slots=True)
class MapAxis:
    """An axis of the image's map besides its channels.

    `pixels` is the axis of results and `tap` that of the window that move along it, "" for none. A
    result's next pixel is `step` pixels further, the window's next one `dilation` pixels. The first
    one begins at `start`, which is negative by the padding.

    Units: `stride` in elements, the others in pixels that results read: each second one of the
    image if strides and dilation are even.
    """

    extent: int
    stride: int
    pixels: str
    tap: str
    step: int = 1
    start: int = 0
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class PixelWindows:
    """A product by the pixels of windows.

    `product` has channels of results as rows and pixels as columns. `image` and `weight` are the
    numbers of their loads, `axes` the image's axes but the channels, outermost first. The window's
    axes are `taps`, the last of them its channels; those that are slices of the sum are batches of
    the product, and come first. The sum begins at element `first` of the map's first pixel: if only
    each second pixel of an image is read, that may be an odd one. The axis `group`, a batch of the
    product, too, has groups of results and of the image's channels.
    """

    product: Contraction
    image: int
    weight: int
    axes: tuple[MapAxis, ...]
    taps: tuple[Axis, ...]
    first: int = 0
    group: Axis | None = None

    @property
    def channels(self) -> int:
        """The channels of the image, or of one of its groups."""
        return self.taps[-1].extent.as_int()

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return 1 if self.group is None else self.group.extent.as_int()

    @property
    def slices(self) -> tuple[Axis, ...]:
        """The axes of the window that are slices of the sum."""
        return tuple(axis for axis in self.product.batches if axis is not self.group)

    @property
    def pixels(self) -> tuple[int, ...]:
        """The extents of the results' pixels."""
        return tuple(axis.extent.as_int() for axis in self.product.columns)

    def boxes(self, count: int) -> Iterator[tuple[int, ...]]:
        """The boxes of `count` pixels whose sides are powers of two that maps take."""
        steps = {axis.pixels: axis.step for axis in self.axes}
        sides = [
            [1 << e for e in range(count.bit_length()) if steps[axis.name] << e <= _MOST_SIDE]
            for axis in self.product.columns
        ]
        yield from (box for box in product(*sides) if prod(box) == count)

    def best_box(self, count: int) -> tuple[int, ...] | None:
        """The box with the fewest tiles, of these the one that reads the fewest pixels."""

        def order(box: tuple[int, ...]) -> tuple[int, int]:
            return self.tiles(box), self._read(box)

        return min(self.boxes(count), key=order, default=None)

    def tiles(self, box: Sequence[int]) -> int:
        """The number of boxes that have all pixels."""
        return prod(-(-extent // side) for extent, side in zip(self.pixels, box, strict=True))

    def _read(self, box: Sequence[int]) -> int:
        """The pixels of the image that a tile reads."""
        sides = dict(zip((axis.name for axis in self.product.columns), box, strict=True))
        taps = {tap.name: tap.extent.as_int() for tap in self.taps}
        return prod(
            (sides.get(axis.pixels, 1) - 1) * axis.step
            + (taps.get(axis.tap, 1) - 1) * axis.dilation
            + 1
            for axis in self.axes
        )


def pixel_windows(kernel: Kernel) -> PixelWindows | None:
    """The windows that a kernel multiplies; None if it is no product by windows that maps copy."""
    found = find_contraction(kernel, ALL_FACTORS)
    if found is None or len(found.sums) != 1 or not found.rows or kernel.sizes:
        return None
    axes = (*kernel.outer, *kernel.reduction)
    is_plain = len(axes) <= _MATRIX_AXES
    if is_plain or not all(axis.extent.is_constant for axis in axes):
        return None
    (only,) = found.sums
    return _windows(kernel, found, only.right, only.left) or _windows(
        kernel, _turned(found), only.left, only.right
    )


def _turned(found: Contraction) -> Contraction:
    """A product with its factors exchanged."""
    sums = tuple(replace(s, left=s.right, right=s.left) for s in found.sums)
    return replace(
        found,
        rows=found.columns,
        columns=found.rows,
        sums=sums,
        has_columns=found.has_rows,
        has_rows=found.has_columns,
    )


def _windows(kernel: Kernel, found: Contraction, image: int, weight: int) -> PixelWindows | None:
    """The windows of a product by an image; `found` has this as right factor."""
    loads = masked_load(kernel, image), kernel.body[weight]
    if loads[0] is None or not isinstance(kernel.body[image], Load):
        return None
    if not isinstance(loads[1], Load) or loads[1].mask is not None or len(found.rows) != 1:
        return None
    params = [kernel.param(load.param) for load in (loads[0].load, loads[1])]
    if params[0] is params[1] or any(p.dtype.itemsize_bytes != _ELEMENT_BYTES for p in params):
        return None
    for group in (None, *found.batches[-1:]):
        slices = [axis for axis in found.batches if axis is not group]
        taps = (*slices, *kernel.reduction)
        if group is not None and len(taps) + len(found.columns) <= _MATRIX_AXES - 1:
            continue  # matrices, which are read as slices of a sum are
        rows = found.rows if group is None else (group, *found.rows)
        index = _of_first_group(loads[0].load.index, group, taps[-1])
        if index is None or not _is_row_major((*rows, *taps), loads[1].index):
            continue
        made = _image_axes(taps, found.columns, index, loads[0].positions)
        if made is not None:
            return PixelWindows(found, image, weight, made[0], taps, made[1], group)
    return None


def _of_first_group(index: Expr, group: Axis | None, channels: Axis) -> Expr | None:
    """The index of an image's element in the first group; None if groups are no neighbours."""
    if group is None:
        return index
    parts = index.linear_in(group.name)
    return None if parts is None or parts[0] is not channels.extent else parts[1]


def _is_row_major(axes: Sequence[Axis], index: Expr) -> bool:
    """True if a weight has its elements in the order of axes, the sum's last."""
    step = ONE
    for axis in reversed(axes):
        parts = index.linear_in(axis.name)
        if parts is None or parts[0] is not step:
            return False
        step, index = step * axis.extent, parts[1]
    return index is ZERO


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a position along an image's axis is at least, and less than; None if unknown."""

    start: int | None = None
    limit: int | None = None


_Position = tuple[str, str, int, int]
"""A position `step * pixels + dilation * tap` along an axis of an image."""


def _image_axes(
    window: Sequence[Axis], pixels: Sequence[Axis], index: Expr, positions: Sequence[Expr]
) -> tuple[tuple[MapAxis, ...], int] | None:
    """The axes of an image's map, and its first element; None if it is none that a map has."""
    outer = {axis.name: axis.extent.as_int() for axis in pixels}
    taps = {axis.name: axis.extent.as_int() for axis in window[:-1]}
    channels = window[-1]
    strides = _strides(index, (*outer, *taps, channels.name))
    limits = _limits(positions, outer, taps)
    if strides is None or limits is None or strides[channels.name] != 1:
        return None
    alone = [name for name in (*outer, *taps) if not any(name in place[:2] for place in limits)]
    limits |= {place: _Limits() for place in _places(alone, outer, strides, len(limits))}
    made, first = [], strides[""]
    for (pixel, tap, step, dilation), known in limits.items():
        stride = strides[tap] // dilation if tap else strides[pixel] // step
        moves = ((pixel, step), (tap, dilation))
        if any(name and strides[name] != pixels * stride for name, pixels in moves):
            return None
        start = known.start or 0
        reach = step * (outer.get(pixel, 1) - 1) + dilation * (taps.get(tap, 1) - 1) + 1
        extent = (reach if known.limit is None else known.limit) - start
        first += start * stride
        made.append(MapAxis(extent, stride, pixel, tap, step, -start, dilation))
    order = [*outer, *taps]
    made.sort(key=lambda axis: order.index(axis.pixels or axis.tap))
    is_even = all(axis.stride * _ELEMENT_BYTES % _ROW_BYTES == 0 for axis in made)
    has_extents = all(a.extent > 0 and a.stride > 0 and a.step <= MOST_STEP for a in made)
    if first < 0 or not is_even or not has_extents or len(made) >= MOST_AXES:
        return None
    return tuple(made), first


def _places(
    alone: list[str], outer: Collection[str], strides: Mapping[str, int], others: int
) -> Iterator[_Position]:
    """The positions of axes without limits, beside the `others`.

    An axis of results and one of the window share an axis of the map only if it had too many else.
    """
    pixels, taps = ([n for n in alone if (n in outer) == is_pixel] for is_pixel in (True, False))
    fits_map = others + len(pixels) + len(taps) < MOST_AXES
    is_forward = all(strides[name] > 0 for name in alone)
    near: Sequence[str] = ()
    if is_forward and not fits_map and len(taps) <= len(pixels) < MOST_AXES:
        moved = [strides[tap] for tap in taps]

        def distance(names: Sequence[str]) -> tuple[bool, float]:
            pairs = [(strides[name], tap) for name, tap in zip(names, moved, strict=True)]
            has_long_steps = any(pixel // gcd(pixel, tap) > MOST_STEP for pixel, tap in pairs)
            return has_long_steps, prod(max(pair) / min(pair) for pair in pairs)

        # Down and down, across and across: so the strides of each pair differ least.
        near = min(permutations(pixels, len(taps)), key=distance)
    for pixel, tap in zip(near, taps, strict=False):
        common = gcd(strides[pixel], strides[tap])
        yield pixel, tap, strides[pixel] // common, strides[tap] // common
    yield from (("", tap, 1, 1) for tap in taps[len(near) :])
    yield from ((name, "", 1, 1) for name in pixels if name not in near)


def _strides(index: Expr, names: Sequence[str]) -> dict[str, int] | None:
    """The steps of an index along axes, and by "" what is left; None if it has other parts."""
    found = {}
    for name in names:
        parts = index.linear_in(name)
        if parts is None or not parts[0].is_constant:
            return None
        found[name] = parts[0].as_int()
        index = parts[1]
    return {**found, "": index.constant} if index.is_constant else None


def _limits(
    positions: Sequence[Expr], outer: dict[str, int], taps: dict[str, int]
) -> dict[_Position, _Limits] | None:
    """The limits of positions along axes; None if one has another form."""
    found: dict[_Position, _Limits] = {}
    for position in positions:
        pixels = sorted(position.symbols & outer.keys())
        window = sorted(position.symbols & taps.keys())
        if len(pixels) > 1 or len(window) > 1 or len(pixels) + len(window) < len(position.symbols):
            return None
        strides = _strides(position, (*pixels, *window))
        if strides is None:
            return None
        constant = strides.pop("")
        sign = 1 if min(strides.values()) > 0 else -1
        steps = [strides[name] * sign for name in (*pixels, *window)]
        if min(steps) < 1:
            return None
        common = gcd(*steps)
        step, dilation = steps[0] // common if pixels else 1, steps[-1] // common if window else 1
        place = ("".join(pixels), "".join(window), step, dilation)
        known = found.get(place, _Limits())
        if sign > 0:
            least = -(constant // common)
            start = max(least, known.start if known.start is not None else least)
            found[place] = replace(known, start=start)
        else:
            limit = constant // common + 1
            found[place] = replace(known, limit=min(limit, known.limit or limit))
    named = [name for place in found for name in place[:2] if name]
    return found if len(set(named)) == len(named) else None
