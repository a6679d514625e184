"""The templates of attention's gradients, which compute the weights of queries again.

The first kernel computes two numbers for each query: its log-sum-exp in powers of two, and the mean
of the gradients of its weights, weighted by the weights, which is the product of the query's result
and of the result's gradient. It also clears the memory to which the second kernel adds.

A program of the second kernel takes a tile of keys, and all queries that see them. It keeps the
gradients of its keys and values in registers, and adds those of queries to memory in f32 (Dao 2023,
"FlashAttention-2"). So those depend on the order in which programs run, as the framework's do.

Shapes:
    query: (b, g * h, q, d); key and value: (b, g, s, d); output and grad, its gradient: as query
    mask, added to the scores: (b or 1, g * h or 1, q or 1, s)
    sums: (b, g * h, q) f32: the logarithm of the sum of the exponentials of each query's scores,
        inf for a query that sees no key
    grad_query, not scaled yet: (b, q, g * h, d) f32, row-major
    grad_key, grad_value: (b, s, g, d), row-major, or (b, s, g * h, d): gradients of each head of
        queries, to be summed
    statistics: (b, g * h, 2, q) f32, row-major, q filled up to a multiple of 64
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, ceil_div
from kernelfarm.ir.triton.user_kernel import (
    FLASH_GRADIENTS_TEMPLATE,
    FixedParam,
    Pointer,
    UserKernel,
    Value,
)
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.attention_operands import (
    has_even_rows,
    mask_param,
    number_params,
    steps_of,
    takes_maps,
)

STATISTICS_BLOCK = 64
"""Statistics are stored for this many queries, or a multiple of it."""
_BLOCK = STATISTICS_BLOCK
# Heads are filled up to at least this width: narrower halves are no factor of the chips' products.
_LEAST_WIDTH = 64
_STATISTICS_ENTRY = "flash_statistics"
_STATISTICS_SOURCE = """\
LOG2_E = 1.4426950408889634


def flash_statistics(
    output, grad, sums, grad_query, statistics, sequences, length,
    output_at, output_batch, output_head, output_row, output_column,
    grad_at, grad_batch, grad_head, grad_row, grad_column,
    sums_at, sums_batch, sums_head, sums_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
):
    tiles = tl.cdiv(length, BLOCK)
    head = (tl.program_id(0) % HEADS).to(tl.int64)
    tile = (tl.program_id(0) // HEADS) % tiles
    batch = (tl.program_id(0) // (HEADS * tiles)).to(tl.int64)
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    far_rows = rows.to(tl.int64)
    across = tl.arange(0, WIDTH_BLOCK)[None, :]
    own = rows < length
    is_inside = own[:, None] & (across < WIDTH)
    results = tl.load(
        output + output_at + batch * output_batch + head * output_head
        + (far_rows * output_row)[:, None] + across * output_column,
        mask=is_inside, other=0.0,
    )
    grads = tl.load(
        grad + grad_at + batch * grad_batch + head * grad_head
        + (far_rows * grad_row)[:, None] + across * grad_column,
        mask=is_inside, other=0.0,
    )
    log = tl.load(
        sums + sums_at + batch * sums_batch + head * sums_head + far_rows * sums_row,
        mask=own, other=float("inf"),
    )
    mean = tl.sum(results.to(tl.float32) * grads.to(tl.float32), 1)
    place = statistics + (batch * HEADS + head) * 2 * (tiles * BLOCK) + rows
    tl.store(place, log * LOG2_E)
    tl.store(place + tiles * BLOCK, mean)
    place = ((batch * length + far_rows) * HEADS + head) * WIDTH
    tl.store(
        grad_query + place[:, None] + across, tl.zeros([BLOCK, WIDTH_BLOCK], tl.float32),
        mask=is_inside,
    )
"""
_ENTRY = "flash_gradients"
_SOURCE = """\
LOG2_E = 1.4426950408889634


def flash_gradients(
    query, key, value, mask, grad, statistics, grad_query, grad_key, grad_value,
    sequences, length, key_count,
    query_at, query_batch, query_head, query_row, query_column,
    key_at, key_batch, key_head, key_row, key_column,
    value_at, value_batch, value_head, value_row, value_column,
    mask_at, mask_batch, mask_head, mask_row, mask_column,
    grad_at, grad_batch, grad_head, grad_row, grad_column,
    HEADS: tl.constexpr, SHARING: tl.constexpr, OWN_HEADS: tl.constexpr, WIDTH: tl.constexpr,
    SCALE: tl.constexpr, IS_CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
):
    tiles = tl.cdiv(key_count, BLOCK)
    tile = tl.program_id(0) % tiles
    unit = (tl.program_id(0) // tiles % (HEADS // OWN_HEADS)).to(tl.int64)
    group = unit * OWN_HEADS // SHARING
    batch = (tl.program_id(0) // (tiles * (HEADS // OWN_HEADS))).to(tl.int64)
    columns = tile * BLOCK + tl.arange(0, BLOCK)
    seen = columns < key_count
    far_columns = columns.to(tl.int64)
    across = tl.arange(0, WIDTH_BLOCK)[None, :]
    is_inside = across < WIDTH
    keys = tl.load(
        key + key_at + batch * key_batch + group * key_head
        + (far_columns * key_row)[:, None] + across * key_column,
        mask=seen[:, None] & is_inside, other=0.0,
    )
    values = tl.load(
        value + value_at + batch * value_batch + group * value_head
        + (far_columns * value_row)[:, None] + across * value_column,
        mask=seen[:, None] & is_inside, other=0.0,
    )
    found_key = tl.zeros([BLOCK, WIDTH_BLOCK], tl.float32)
    found_value = tl.zeros([BLOCK, WIDTH_BLOCK], tl.float32)
    filled = tl.cdiv(length, BLOCK) * BLOCK
    first = 0
    if IS_CAUSAL:
        first = tile * BLOCK
    for own_head in range(0, OWN_HEADS):
        head = unit * OWN_HEADS + own_head
        for start in range(first, length, BLOCK):
            rows = start + tl.arange(0, BLOCK)
            own = rows < length
            far_rows = rows.to(tl.int64)
            queries = tl.load(
                query + query_at + batch * query_batch + head * query_head
                + (far_rows * query_row)[:, None] + across * query_column,
                mask=own[:, None] & is_inside, other=0.0,
            )
            grads = tl.load(
                grad + grad_at + batch * grad_batch + head * grad_head
                + (far_rows * grad_row)[:, None] + across * grad_column,
                mask=own[:, None] & is_inside, other=0.0,
            )
            scores = tl.dot(queries, tl.trans(keys)) * (SCALE * LOG2_E)
            if HAS_MASK:
                added = tl.load(
                    mask + mask_at + batch * mask_batch + head * mask_head
                    + (far_rows * mask_row)[:, None] + (far_columns * mask_column)[None, :],
                    mask=own[:, None] & seen[None, :], other=0.0,
                )
                scores += added.to(tl.float32) * LOG2_E
            place = statistics + (batch * HEADS + head) * 2 * filled + rows
            log = tl.load(place)
            mean = tl.load(place + filled)
            weights = tl.exp2(scores - log[:, None])
            weights = tl.where(seen[None, :], weights, 0.0)
            if IS_CAUSAL:
                weights = tl.where(rows[:, None] >= columns[None, :], weights, 0.0)
            found_value += tl.dot(tl.trans(weights.to(grads.dtype)), grads)
            change = tl.dot(grads, tl.trans(values))
            change = (weights * (change - mean[:, None])).to(grads.dtype)
            found_key += tl.dot(tl.trans(change), queries)
            place = ((batch * length + far_rows) * HEADS + head) * WIDTH
            tl.atomic_add(
                grad_query + place[:, None] + across, tl.dot(change, keys),
                mask=own[:, None] & is_inside, sem="relaxed",
            )
    place = ((batch * key_count + far_columns) * (HEADS // OWN_HEADS) + unit) * WIDTH
    stored = place[:, None] + across
    tl.store(
        grad_key + stored, (found_key * SCALE).to(grad_key.dtype.element_ty),
        mask=seen[:, None] & is_inside,
    )
    tl.store(
        grad_value + stored, found_value.to(grad_value.dtype.element_ty),
        mask=seen[:, None] & is_inside,
    )
"""


@dataclass(frozen=True, slots=True)
class GradientOperands:
    """Where the operands are in memory; heads and their widths are known."""

    query: StridedView
    key: StridedView
    value: StridedView
    output: StridedView
    grad: StridedView
    sums: StridedView
    mask: StridedView | None


Made = tuple[UserKernel, tuple[Expr, ...]]
"""A kernel, and the numbers of its launch, of which the last three are the grid."""


def flash_statistics(operands: GradientOperands, dtype: DType) -> Made:
    """The kernel that computes statistics of queries, and clears their gradients.

    Its buffers are output, grad, sums, grad_query and statistics.
    """
    sequences, heads, length, width = operands.query.shape
    steps = steps_of("output", operands.output) | steps_of("grad", operands.grad)
    steps |= _sum_steps(operands.sums)
    numbers, passed = number_params({"sequences": sequences, "length": length}, steps)
    params = (
        *(Pointer(name, dtype) for name in ("output", "grad")),
        *(Pointer(name, DType.F32) for name in ("sums", "grad_query", "statistics")),
        *numbers,
        FixedParam("HEADS", heads.as_int()),
        FixedParam("WIDTH", width.as_int()),
        FixedParam("BLOCK", _BLOCK),
        FixedParam("WIDTH_BLOCK", filled_width(width)),
    )
    options = (("num_warps", 4),)
    kernel = UserKernel(_STATISTICS_ENTRY, _STATISTICS_SOURCE, _STATISTICS_ENTRY, params, options)
    return kernel, (*passed, ceil_div(length, _BLOCK) * sequences * heads, ONE, ONE)


def flash_gradients(
    operands: GradientOperands, dtype: DType, scale: float, *, is_causal: bool, own_heads: int
) -> Made:
    """The kernel that computes gradients; a program takes `own_heads` heads of queries.

    Its buffers are query, key, value, mask if there is one, grad, statistics, grad_query, grad_key
    and grad_value.
    """
    sequences, heads, length, width = operands.query.shape
    groups, key_count = operands.key.shape[1], operands.key.shape[2]
    sizes = {"sequences": sequences, "length": length, "key_count": key_count}
    mapped = _mapped(operands)
    steps: dict[str, Expr] = {}
    for name in ("query", "key", "value", "mask", "grad"):
        steps |= steps_of(name, operands.mask if name == "mask" else mapped[name])
    constants: dict[str, Value] = {
        "HEADS": heads.as_int(),
        "SHARING": heads.as_int() // groups.as_int(),
        "OWN_HEADS": own_heads,
        "WIDTH": width.as_int(),
        "SCALE": scale,
        "IS_CAUSAL": is_causal,
        "HAS_MASK": operands.mask is not None,
        "BLOCK": _BLOCK,
        "WIDTH_BLOCK": filled_width(width),
    }
    numbers, passed = number_params(sizes, steps)
    params = (
        *(Pointer(name, dtype) for name in ("query", "key", "value")),
        mask_param(operands.mask, dtype),
        Pointer("grad", dtype),
        *(Pointer(name, DType.F32) for name in ("statistics", "grad_query")),
        *(Pointer(name, dtype) for name in ("grad_key", "grad_value")),
        *numbers,
        *(FixedParam(name, value) for name, value in constants.items()),
    )
    own = [*mapped.values(), *([] if operands.mask is None else [operands.mask])]
    template = FLASH_GRADIENTS_TEMPLATE if has_even_rows(own) and takes_maps(mapped, dtype) else ""
    options = (("num_stages", 1), ("num_warps", 8))
    kernel = UserKernel(_ENTRY, _SOURCE, _ENTRY, params, options, template)
    units = heads.as_int() // own_heads
    return kernel, (*passed, ceil_div(key_count, _BLOCK) * sequences * units, ONE, ONE)


def _mapped(operands: GradientOperands) -> Mapping[str, StridedView]:
    """The operands that tensor maps describe."""
    return {
        "query": operands.query,
        "key": operands.key,
        "value": operands.value,
        "grad": operands.grad,
    }


def _sum_steps(sums: StridedView) -> dict[str, Expr]:
    """The steps of log-sum-exps, which have no columns."""
    axes = StridedView(sums.source, (*sums.shape, ONE), (*sums.strides, ONE), sums.offset)
    steps = steps_of("sums", axes)
    del steps["sums_column"]
    return steps


def filled_width(width: Expr) -> int:
    """The elements of a head of this width in registers, a power of two."""
    return max(_LEAST_WIDTH, 1 << (width.as_int() - 1).bit_length())
