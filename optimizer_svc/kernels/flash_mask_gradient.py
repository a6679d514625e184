"""The template of the gradient of a mask of numbers that attention adds to its scores.

The gradient of a mask is that of the scores before they are scaled, summed over the sequences,
heads and queries that share a number of the mask. A program takes a tile of the mask's own shape,
computes the weights of its queries again for one sharing tile after the other, and keeps the sum in
registers. So the sum has the same order in each run, and nothing is added in memory.

A mask that many sequences share, such as a bias of relative positions, has few tiles. Then a
program sums one of several parts, and a kernel of prims adds the parts in their order.

Shapes:
    query: (b, g * h, q, d); key and value: (b, g, s, d); grad, that of the result: as query
    statistics: (b, g * h, 2, q) f32, q filled up to a multiple of 64, as `flash_gradients` has them
    mask: (b or 1, g * h or 1, q or 1, s), perhaps without its first axes
    out: (parts, b or 1, g * h or 1, q or 1, s), row-major, f32 or the type of the mask
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, ceil_div, product_of
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, UserKernel, Value
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.attention_operands import number_params, steps_of
from optimizer_svc.kernels.flash_gradients import STATISTICS_BLOCK, filled_width

TILE = STATISTICS_BLOCK
"""The queries and the keys of a tile."""
_AXES = 4
_ENTRY = "flash_mask_gradient"
_SOURCE = """\
LOG2_E = 1.4426950408889634


def flash_mask_gradient(
    query, key, value, grad, statistics, mask, out, sequences, length, key_count,
    query_at, query_batch, query_head, query_row, query_column,
    key_at, key_batch, key_head, key_row, key_column,
    value_at, value_batch, value_head, value_row, value_column,
    grad_at, grad_batch, grad_head, grad_row, grad_column,
    statistics_at, statistics_batch, statistics_head, statistics_row, statistics_column,
    mask_at, mask_batch, mask_head, mask_row, mask_column,
    HEADS: tl.constexpr, SHARING: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
    HAS_BATCHES: tl.constexpr, HAS_HEADS: tl.constexpr, HAS_ROWS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
):
    key_tiles = tl.cdiv(key_count, BLOCK)
    query_tiles = tl.cdiv(length, BLOCK)
    tile = tl.program_id(0) % key_tiles
    part = tl.program_id(0) // key_tiles
    own_tile, own_head, own_batch, repeats = 0, 0, 0, 1
    if HAS_ROWS:
        own_tile = part % query_tiles
        part = part // query_tiles
    else:
        repeats = query_tiles
    line = part.to(tl.int64)
    if HAS_HEADS:
        own_head = part % HEADS
        part = part // HEADS
    else:
        repeats = repeats * HEADS
    if HAS_BATCHES:
        own_batch = part % sequences
        part = part // sequences
    else:
        repeats = repeats * sequences
    columns = tile * BLOCK + tl.arange(0, BLOCK)
    seen = columns < key_count
    far_columns = columns.to(tl.int64)
    across = tl.arange(0, WIDTH_BLOCK)[None, :]
    is_inside = across < WIDTH
    own_rows = own_tile * BLOCK + tl.arange(0, BLOCK)
    is_own = own_rows < length
    far_own_rows = own_rows.to(tl.int64)
    added = tl.load(
        mask + mask_at + tl.cast(own_batch, tl.int64) * mask_batch
        + tl.cast(own_head, tl.int64) * mask_head
        + (far_own_rows * mask_row)[:, None] + (far_columns * mask_column)[None, :],
        mask=is_own[:, None] & seen[None, :], other=0.0,
    ).to(tl.float32) * LOG2_E
    found = tl.zeros([BLOCK, BLOCK], tl.float32)
    count = tl.cdiv(repeats, PARTS)
    for number in range(part * count, tl.minimum(part * count + count, repeats)):
        rows = own_rows
        left = number
        if not HAS_ROWS:
            rows = (left % query_tiles) * BLOCK + tl.arange(0, BLOCK)
            left = left // query_tiles
        head = tl.cast(own_head, tl.int64)
        if not HAS_HEADS:
            head = (left % HEADS).to(tl.int64)
            left = left // HEADS
        batch = tl.cast(own_batch, tl.int64)
        if not HAS_BATCHES:
            batch = left.to(tl.int64)
        group = head // SHARING
        is_row = rows < length
        far_rows = rows.to(tl.int64)
        queries = tl.load(
            query + query_at + batch * query_batch + head * query_head
            + (far_rows * query_row)[:, None] + across * query_column,
            mask=is_row[:, None] & is_inside, other=0.0,
        )
        keys = tl.load(
            key + key_at + batch * key_batch + group * key_head
            + (far_columns * key_row)[:, None] + across * key_column,
            mask=seen[:, None] & is_inside, other=0.0,
        )
        grads = tl.load(
            grad + grad_at + batch * grad_batch + head * grad_head
            + (far_rows * grad_row)[:, None] + across * grad_column,
            mask=is_row[:, None] & is_inside, other=0.0,
        )
        values = tl.load(
            value + value_at + batch * value_batch + group * value_head
            + (far_columns * value_row)[:, None] + across * value_column,
            mask=seen[:, None] & is_inside, other=0.0,
        )
        place = statistics + statistics_at + batch * statistics_batch + head * statistics_head
        log = tl.load(place + far_rows * statistics_column)
        mean = tl.load(place + statistics_row + far_rows * statistics_column)
        scores = tl.dot(queries, tl.trans(keys)) * (SCALE * LOG2_E) + added
        weights = tl.exp2(scores - log[:, None])
        found += weights * (tl.dot(grads, tl.trans(values)) - mean[:, None])
    if HAS_ROWS:
        place = (line * length + far_own_rows[:, None]) * key_count + columns[None, :]
        tl.store(
            out + place, found.to(out.dtype.element_ty), mask=is_own[:, None] & seen[None, :]
        )
    else:
        place = line * key_count + columns
        tl.store(out + place, tl.sum(found, 0).to(out.dtype.element_ty), mask=seen)
"""


def flash_mask_gradient(
    named: Mapping[str, StridedView], dtypes: tuple[DType, DType], scale: float, parts: int
) -> tuple[UserKernel, tuple[Expr, ...]]:
    """The kernel for operands in memory, and the numbers of its launch: the last are the grid.

    `named` has query, key, value, grad, statistics and mask, which are its buffers with the result
    behind them. `dtypes` are those of the operands, but statistics, and of the result.
    """
    query, key = named["query"], named["key"]
    sequences, heads, length, width = query.shape
    batches, own_heads, rows, key_count = mask_axes(named["mask"].shape)
    constants: dict[str, Value] = {
        "HEADS": heads.as_int(),
        "SHARING": heads.as_int() // key.shape[1].as_int(),
        "WIDTH": width.as_int(),
        "SCALE": scale,
        "HAS_BATCHES": batches is not ONE,
        "HAS_HEADS": own_heads is not ONE,
        "HAS_ROWS": rows is not ONE,
        "PARTS": parts,
        "BLOCK": TILE,
        "WIDTH_BLOCK": filled_width(width),
    }
    sizes = {"sequences": sequences, "length": length, "key_count": key_count}
    steps: dict[str, Expr] = {}
    for name, view in named.items():
        steps |= steps_of(name, view)
    numbers, passed = number_params(sizes, steps)
    params = (
        *(Pointer(name, DType.F32 if name == "statistics" else dtypes[0]) for name in named),
        Pointer("out", dtypes[1]),
        *numbers,
        *(FixedParam(name, value) for name, value in constants.items()),
    )
    options = (("num_stages", 2), ("num_warps", 4))
    kernel = UserKernel(_ENTRY, _SOURCE, _ENTRY, params, options)
    return kernel, (*passed, tiles_of(named["mask"].shape) * as_expr(parts), ONE, ONE)


def mask_axes(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The extents of a mask along (batch, heads, queries, keys)."""
    return (*(ONE,) * (_AXES - len(shape)), *shape)


def tiles_of(shape: tuple[Expr, ...]) -> Expr:
    """The tiles of a mask of this shape."""
    batches, heads, rows, keys = mask_axes(shape)
    return product_of([batches, heads, ceil_div(rows, TILE), ceil_div(keys, TILE)])
