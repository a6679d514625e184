"""Products of matrices as Triton text: tiles of results, by the chip's instructions for matrices.

A program has a tile of [XBLOCK, RBLOCK] results: rows of the left factors, columns of the right
ones. A loop over the sums loads KBLOCK points of both at a time. What the kernel computes from a
factor's elements is done on its blocks [XBLOCK, KBLOCK] and [KBLOCK, RBLOCK] before `tl.dot`; what
it computes from the sums is done on the tile, after the loop.

Programs that run at the same time should read few rows and columns. So they go down a band of
`_BAND_TILES` tiles before they go to the next column. A batch has all its tiles before the next.

If a tiling asks for it, factors that are plain matrices are loaded by tensor maps, which are
arguments. A fixed number of programs may compute all tiles, one after the other: so the loads of a
tile begin during the one before, and a chip whose programs are its cores has one for each core.

Where the target asks for it, a factor's block is loaded as the factor lies in memory, [RBLOCK,
KBLOCK] or [KBLOCK, XBLOCK], and transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from codegen_svc.emitters.triton.accumulators import accumulators
from codegen_svc.emitters.triton.block import Block, BlockNames, make_block
from codegen_svc.emitters.triton.grouped_loads import at_step_start, grouped_loads
from codegen_svc.emitters.triton.index import R_FLAT, X_FLAT, numel
from codegen_svc.emitters.triton.pixel_boxes import (
    R_MASK,
    first_pixel_lines,
    pixel_lines,
    tap_lines,
    window_maps,
)
from codegen_svc.emitters.triton.pixel_windows import PixelWindows, pixel_windows
from codegen_svc.emitters.triton.scalar import ScalarRules
from codegen_svc.emitters.triton.statements import statement_lines
from codegen_svc.emitters.triton.tensor_maps import TensorMap, tensor_maps
from codegen_svc.emitters.triton.tiling import Tiling, static_numel
from codegen_svc.emitters.triton.unused_lines import drop_unused_axes, drop_unused_values
from codegen_svc.emitters.triton.word_loads import once_each
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.contractions import (
    ALL_FACTORS,
    Contraction,
    ProductSum,
    find_contraction,
)
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Axis, Kernel, Load, needed_statements

_STEP = "    "
_BAND_TILES = 8
_LEFT = BlockNames((X_FLAT, "kindex"), ("XBLOCK", "KBLOCK"), ("xmask", "kmask"))
_RIGHT = BlockNames(("kcolumn", R_FLAT), ("KBLOCK", "RBLOCK"), ("kcolumn_mask", "rmask"))
_TURNED_LEFT = BlockNames(("kcolumn", "xrow"), ("KBLOCK", "XBLOCK"), ("kcolumn_mask", "xrow_mask"))
_TURNED_RIGHT = BlockNames(("rcolumn", "kindex"), ("RBLOCK", "KBLOCK"), ("rcolumn_mask", "kmask"))
_X_TILES = "xtiles = (xnumel + XBLOCK - 1) // XBLOCK"
_R_TILES = "rtiles = (rnumel + RBLOCK - 1) // RBLOCK"
_FLATS = (X_FLAT, R_FLAT, "kindex", "kcolumn", "xrow", "rcolumn")


@dataclass(frozen=True, slots=True)
class _Side:
    """The block of the left or the right factors; `is_turned`: it is transposed for the product."""

    block: Block
    is_left: bool
    is_turned: bool

    @property
    def points(self) -> tuple[str, str, str]:
        """Names of the block's points of the sums and of their mask, and their axis as text."""
        axis = 1 if self.is_left != self.is_turned else 0
        mask = self.block.r_mask if axis else self.block.x_mask
        return self.block.texts.flats[axis], mask, ("[:, None]", "[None, :]")[axis]

    @property
    def others(self) -> tuple[str, str, str]:
        """The same of the block's rows or columns."""
        axis = 0 if self.is_left != self.is_turned else 1
        mask = self.block.r_mask if axis else self.block.x_mask
        return self.block.texts.flats[axis], mask, ("[:, None]", "[None, :]")[axis]

    @property
    def varying(self) -> frozenset[int]:
        """The statements that vary over the points of the sums."""
        is_last = self.is_left != self.is_turned
        return self.block.varying if is_last else self.block.across_x


@dataclass(frozen=True, slots=True)
class _Product:
    """A product with the blocks of its left factors, its right factors and its results.

    `maps` are the tensor maps of its factors, if these are loaded so. `roots` are the statements
    that name the accumulators of sums and of additions of sums. With `windows`, the columns of a
    tile are the pixels of the tiling's box.
    """

    kernel: Kernel
    found: Contraction
    left: _Side
    right: _Side
    tile: Block
    maps: Mapping[int, TensorMap]
    roots: Mapping[int, int]
    windows: PixelWindows | None = None

    @property
    def is_one_row(self) -> bool:
        """True if one tile has all rows."""
        rows = static_numel(self.found.rows)
        return rows is not None and rows <= self.tile.tiling.xblock


def product_lines(
    kernel: Kernel, tiling: Tiling, rules: ScalarRules
) -> tuple[list[str], tuple[DType | None, ...], tuple[TensorMap, ...]]:
    """The body of a product's function, the element type of each statement, and its tensor maps.

    The maps are in the order of a launch's arguments.

    Raises:
        KernelRejectedError: the kernel is no product.
    """
    product = _product(kernel, tiling, rules)
    varying = product.left.varying | product.right.varying
    # What masks an image's load is the map's matter.
    needed = () if product.windows else needed_statements(kernel, _factors(product))
    early = [n for n in needed if n not in varying]
    late = [n for n in range(len(kernel.body)) if n not in {*varying, *early, *product.roots}]
    body = [
        *_point_lines(product),
        *_statements(product.tile, early),
        *_loop_lines(product),
        *_statements(product.tile, late),
    ]
    body = drop_unused_values(product.tile, body)
    body = drop_unused_axes(body, _FLATS)
    counts, maps = _count_lines(product), tuple(product.maps.values())
    if not tiling.programs:
        return [*counts, *_place_lines(product), *body], product.tile.dtypes, maps
    inner = [_STEP + line for line in (*_numbered_lines(product, "program"), *body)]
    lines = [*counts, *_tile_counts(product), f"for program in {_tile_range(product)}:", *inner]
    return lines, product.tile.dtypes, maps


def _product(kernel: Kernel, tiling: Tiling, rules: ScalarRules) -> _Product:
    windows = pixel_windows(kernel) if tiling.box else None
    found = find_contraction(kernel, ALL_FACTORS) if windows is None else windows.product
    if found is None:
        raise KernelRejectedError(
            f"kernel {kernel.name} is no product of matrices; expected sums of products of rows and"
            " columns"
        )

    def view(x_axes: tuple[Axis, ...], r_axes: tuple[Axis, ...], names: BlockNames) -> Block:
        sizes = {"XBLOCK": tiling.xblock, "RBLOCK": tiling.rblock, "KBLOCK": tiling.kblock}
        x_size, r_size = (sizes[name] for name in names.sizes)
        form = replace(tiling, xblock=x_size, xsub=x_size, rblock=r_size)
        # A batch's number is one for a whole program, as a size is.
        fixed = (SizeSymbol(a.name, 0, a.extent.as_int() - 1) for a in found.batches)
        part = replace(kernel, outer=x_axes, reduction=r_axes, sizes=(*kernel.sizes, *fixed))
        viewed = make_block(part, form, rules, names)
        across, varying = (_varying(found, axes) for axes in (x_axes, r_axes))
        return replace(viewed, across_x=across, varying=varying)

    rows, columns, points = found.rows, found.columns, kernel.reduction
    turns_left, turns_right = (
        rules.turns_factors and is_turned for is_turned in (found.has_rows, not found.has_columns)
    )
    left = view(points, rows, _TURNED_LEFT) if turns_left else view(rows, points, _LEFT)
    right = view(columns, points, _TURNED_RIGHT) if turns_right else view(points, columns, _RIGHT)
    tile, maps = view(rows, columns, BlockNames()), {}
    if windows is not None:
        is_masked = any(e % side for e, side in zip(windows.pixels, tiling.box, strict=True))
        tile = replace(tile, r_mask=R_MASK if is_masked else "")
        maps = window_maps(kernel, windows, tiling.box)
    elif tiling.has_maps:
        maps = tensor_maps(kernel, found)
    return _Product(
        kernel,
        found,
        left=_Side(left, True, turns_left),
        right=_Side(right, False, turns_right),
        tile=tile,
        maps=maps,
        roots=accumulators(kernel, found),
        windows=windows,
    )


def _varying(found: Contraction, axes: tuple[Axis, ...]) -> frozenset[int]:
    """The statements that vary over some of the axes."""
    names = {axis.name for axis in axes}
    return frozenset(n for n, over in enumerate(found.axes_of) if not names.isdisjoint(over))


def _factors(product: _Product) -> list[int]:
    return [factor for s in product.found.sums for factor in (s.left, s.right)]


def _count_lines(product: _Product) -> list[str]:
    """Lines for the numbers of points."""
    kernel, found, block = product.kernel, product.found, product.tile
    is_wide = block.tiling.index_bits == 64
    lines = [] if is_wide else [f"{s.name} = {s.name}.to(tl.int32)" for s in kernel.sizes]
    counts = (("xnumel", found.rows), ("rnumel", found.columns), ("knumel", kernel.reduction))
    return [*lines, *(f"{name} = {block.writer.raw_text(numel(axes))}" for name, axes in counts)]


def _place_lines(product: _Product) -> list[str]:
    """Lines for the first row and column of the program's tile."""
    program = _program_text(product)
    if product.is_one_row and not product.found.batches:
        return ["xoffset = 0", *_column_place(product, program)]
    return [*_tile_counts(product), *_numbered_lines(product, program)]


def _tile_counts(product: _Product) -> list[str]:
    """Lines for the numbers of tiles along rows and columns."""
    if product.windows is None:
        return [_X_TILES, _R_TILES]
    return [_X_TILES, f"rtiles = {product.windows.tiles(product.tile.tiling.box)}"]


def _program_text(product: _Product) -> str:
    is_wide = product.tile.tiling.index_bits == 64
    return "tl.program_id(0).to(tl.int64)" if is_wide else "tl.program_id(0)"


def _tile_range(product: _Product) -> str:
    """The numbers of a program's tiles.

    The loop over one sum is flattened into this: a tile's first loads begin during the one before.
    With two sums, Triton 3.9 then waits for each product: SwiGLU takes 1.3 times as long on an
    H200.
    """
    batches = numel(product.found.batches).as_int()
    tiles = "xtiles * rtiles" + (f" * {batches}" if batches > 1 else "")
    flatten = ", flatten=True" if len(set(product.roots.values())) == 1 else ""
    return f"tl.range({_program_text(product)}, {tiles}, PROGRAMS{flatten})"


def _numbered_lines(product: _Product, number: str) -> list[str]:
    """Lines for the place of a tile by its number among the tiles of all batches."""
    batches = product.found.batches
    if not batches:
        return _tile_lines(product, number)
    return [*_batch_lines(batches, number), *_tile_lines(product, "tile")]


def _tile_lines(product: _Product, program: str) -> list[str]:
    """Lines for the place of a tile by its number."""
    return [
        f"xband = {program} // ({_BAND_TILES} * rtiles) * {_BAND_TILES}",
        f"xheight = tl.minimum(xtiles - xband, {_BAND_TILES})",
        f"inside = {program} - xband * rtiles",
        "xoffset = (xband + inside % xheight) * XBLOCK",
        *_column_place(product, "inside // xheight"),
    ]


def _column_place(product: _Product, number: str) -> list[str]:
    """Lines for a tile's first column by its number among those of a row of tiles."""
    if product.windows is None:
        return [f"roffset = {number} * RBLOCK"]
    return first_pixel_lines(product.windows, product.tile.tiling.box, number)


def _batch_lines(batches: tuple[Axis, ...], program: str) -> list[str]:
    """Lines for the program's batch, and for its tile within that."""
    lines = [
        f"batch = {program} // (xtiles * rtiles)",
        f"tile = {program} - batch * (xtiles * rtiles)",
    ]
    inner = numel(batches).as_int()
    for axis in batches:
        count, inner = inner, inner // axis.extent.as_int()
        within = "batch" if axis is batches[0] else f"batch % {count}"
        lines.append(f"{axis.name} = {within}" + (f" // {inner}" if inner > 1 else ""))
    return lines


def _point_lines(product: _Product) -> list[str]:
    """Lines for the rows and columns of the tile."""
    block = product.tile
    return [
        "xindex = xoffset + tl.arange(0, XBLOCK)[:, None]",
        *(["xmask = xindex < xnumel"] if block.x_mask else []),
        *_axis_lines(block, X_FLAT),
        *_columns_of_tile(product),
        *_axis_lines(block, R_FLAT),
        *_turned_point_lines(product.left, "x"),
        *_turned_point_lines(product.right, "r"),
    ]


def _columns_of_tile(product: _Product) -> list[str]:
    """Lines for the columns of a tile, and for those that there are."""
    if product.windows is not None:
        return pixel_lines(product.windows, product.tile.tiling.box)
    mask = [f"{R_MASK} = rindex < rnumel"] if product.tile.r_mask else []
    return ["rindex = roffset + tl.arange(0, RBLOCK)[None, :]", *mask]


def _turned_point_lines(side: _Side, prefix: str) -> list[str]:
    """Lines for the rows or columns of factors that are transposed."""
    if not side.is_turned:
        return []
    flat, mask, at = side.others
    return [
        f"{flat} = {prefix}offset + tl.arange(0, {prefix.upper()}BLOCK){at}",
        *([f"{mask} = {flat} < {prefix}numel"] if mask else []),
        *_axis_lines(side.block, flat),
    ]


def _loop_lines(product: _Product) -> list[str]:
    """The loop over the points of the sums."""
    block = product.tile
    totals = [block.names[root] for root in dict.fromkeys(product.roots.values())]
    zeros = [f"{total} = tl.zeros([XBLOCK, RBLOCK], tl.float32)" for total in totals]
    lefts, rights = ([getattr(s, side) for s in product.found.sums] for side in ("left", "right"))
    left = drop_unused_axes(_side_lines(product, product.left, lefts), _FLATS)
    right = drop_unused_axes(_side_lines(product, product.right, rights), _FLATS)
    products = (_dot_line(product, s) for s in product.found.sums)
    inner = [*left, *(line for line in right if line not in left), *products]
    ends = []
    if not product.found.rows:  # all rows of a tile are equal
        ends = [f"{t} = tl.sum(tl.where(xindex == 0, {t}, 0.0), 0)[None, :]" for t in totals]
    loop = ["for koffset in range(0, knumel, KBLOCK):", *[_STEP + line for line in inner]]
    return [*zeros, *loop, *ends]


def _side_lines(product: _Product, side: _Side, factors: list[int]) -> list[str]:
    """Lines for the points of one side, and for the blocks of its factors."""
    block = side.block
    flat, mask, at = side.points
    lines = [
        f"{flat} = koffset + tl.arange(0, KBLOCK){at}",
        *([f"{mask} = {flat} < knumel"] if mask else []),
        *_axis_lines(block, flat),
    ]
    if product.windows is not None and not side.is_left:
        lines += tap_lines(product.windows)
    roots = factors if product.windows else needed_statements(product.kernel, factors)
    needed = [n for n in roots if n in side.varying]
    # One program reads an element of a factor once if its tile has all elements of the other.
    eviction = "evict_first" if not side.is_left and product.is_one_row else ""
    grouped: frozenset[int] = frozenset()
    if product.windows is None:
        grouped = grouped_loads(product.kernel, product.tile.tiling.kblock, _factors(product))
    starts = at_step_start(block, grouped, product.kernel.reduction[0]) if grouped else block
    for number in needed:
        if number in product.maps:
            lines.append(f"{product.tile.names[number]} = {product.maps[number].loaded()}")
        else:
            lines += _statements(starts if number in grouped else block, [number], eviction)
    for factor in dict.fromkeys(factors):
        statement = product.kernel.body[factor]
        is_zero = isinstance(statement, Load) and statement.mask is None
        if mask and not is_zero:  # what is computed of lanes past the end is no zero
            name = block.names[factor]
            lines.append(f"{name} = tl.where({mask}, {name}, 0.0)")
    return once_each(lines)


def _dot_line(product: _Product, product_sum: ProductSum) -> str:
    names = product.tile.names
    root = product.roots[product_sum.number]
    left, right, total = (names[n] for n in (product_sum.left, product_sum.right, root))
    left += ".T" if product.left.is_turned else ""
    right += ".T" if product.right.is_turned else ""
    if not product.found.rows:
        left = f"tl.broadcast_to({left}, [XBLOCK, KBLOCK])"
    return f"{total} = tl.dot({left}, {right}, {total})"


def _statements(block: Block, numbers: Iterable[int], eviction: str = "") -> list[str]:
    policy = eviction if block.rules.takes_eviction_policies else ""
    return [line for number in numbers for line in statement_lines(block, number, policy)]


def _axis_lines(block: Block, flat: str) -> list[str]:
    recoveries = [r for r in block.writer.recoveries if r.flat == flat]
    return [f"{r.name} = {block.writer.raw_text(r.expr)}" for r in recoveries]
