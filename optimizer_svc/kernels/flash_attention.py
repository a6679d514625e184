"""The template of attention with several queries for each head, which keeps scores in registers.

A program computes a tile of queries of one head. It reads the keys and values block by block, and
keeps the largest score so far, the sum of weights and the weighted sum of values of each query in
registers, so that scores never reach memory (Dao et al. 2022, "FlashAttention").

The source here runs on every chip that has Triton. Where buffers are aligned and rows have no gaps
that tensor maps cannot express, the code generator of the chip may have code of its own that
computes the same (`UserKernel.template`).

Shapes:
    query: (b, g * h, q, d); key and value: (b, g, s, d)
    mask, added to the scores: (b or 1, g * h or 1, q or 1, s)
    out: (b, q, g * h, d), row-major
    sums: (b, g * h, q) f32, row-major: the logarithm of the sum of the exponentials of each query's
        scores, which gradients start from; inf for a query that sees no key
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, ceil_div
from kernelfarm.ir.triton.user_kernel import (
    FLASH_ATTENTION_TEMPLATE,
    FixedParam,
    Pointer,
    UserKernel,
    UserParam,
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

_ENTRY = "flash_attention"
_BLOCK = 64
_SOURCE = """\
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def flash_attention(
    query, key, value, mask, out, sums, sequences, length, key_count,
    query_at, query_batch, query_head, query_row, query_column,
    key_at, key_batch, key_head, key_row, key_column,
    value_at, value_batch, value_head, value_row, value_column,
    mask_at, mask_batch, mask_head, mask_row, mask_column,
    HEADS: tl.constexpr, SHARING: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_SUMS: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
):
    tile = tl.cdiv(length, BLOCK) - 1 - tl.program_id(0) // (sequences * HEADS)
    batch = ((tl.program_id(0) // HEADS) % sequences).to(tl.int64)
    head = (tl.program_id(0) % HEADS).to(tl.int64)
    group = head // SHARING
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    own = rows < length
    far_rows = rows.to(tl.int64)[:, None]
    across = tl.arange(0, WIDTH_BLOCK)[None, :]
    is_inside = across < WIDTH
    query_base = query + query_at + batch * query_batch + head * query_head
    queries = tl.load(
        query_base + far_rows * query_row + across * query_column,
        mask=own[:, None] & is_inside, other=0.0,
    )
    key_base = key + key_at + batch * key_batch + group * key_head
    value_base = value + value_at + batch * value_batch + group * value_head
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK, WIDTH_BLOCK], tl.float32)
    end = key_count
    if IS_CAUSAL:
        end = tl.minimum(key_count, (tile + 1) * BLOCK)
    for start in range(0, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        seen = columns < key_count
        far_columns = columns.to(tl.int64)
        block = tl.load(
            key_base + (far_columns * key_row)[:, None] + across * key_column,
            mask=seen[:, None] & is_inside, other=0.0,
        )
        scores = tl.dot(queries, tl.trans(block)) * (SCALE * LOG2_E)
        if HAS_MASK:
            added = tl.load(
                mask + mask_at + batch * mask_batch + head * mask_head + far_rows * mask_row
                + (far_columns * mask_column)[None, :],
                mask=own[:, None] & seen[None, :], other=0.0,
            )
            scores += added.to(tl.float32) * LOG2_E
        scores = tl.where(seen[None, :], scores, float("-inf"))
        if IS_CAUSAL:
            scores = tl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(top - base)
        total = total * kept + tl.sum(weights, 1)
        block = tl.load(
            value_base + (far_columns * value_row)[:, None] + across * value_column,
            mask=seen[:, None] & is_inside, other=0.0,
        )
        found = found * kept[:, None] + tl.dot(weights.to(block.dtype), block)
        top = higher
    if HAS_SUMS:
        place = sums + (batch * HEADS + head) * length + rows
        logarithm = tl.where(total == 0.0, float("inf"), (top + tl.log2(total)) * LN_2)
        tl.store(place, logarithm, mask=own)
    found = found / tl.where(total == 0.0, 1.0, total)[:, None]
    place = ((batch * length + far_rows) * HEADS + head) * WIDTH
    tl.store(
        out + place + across, found.to(out.dtype.element_ty), mask=own[:, None] & is_inside
    )
"""


def flash_attention(
    views: Sequence[StridedView],
    dtype: DType,
    scale: float,
    *,
    is_causal: bool,
    has_sums: bool = False,
) -> tuple[UserKernel, tuple[Expr, ...]]:
    """The kernel for operands in memory, and the numbers of its launch.

    `views` are query, key, value, and a mask if there is one, all of type `dtype`; heads and their
    widths are known. With `has_sums`, the kernel also stores log-sum-exps. Grids are the last three
    numbers.
    """
    query, key, value = views[:3]
    mask = views[3] if len(views) > 3 else None
    sequences, heads, length, width = query.shape
    sizes = {"sequences": sequences, "length": length, "key_count": key.shape[2]}
    named = {"query": query, "key": key, "value": value}
    steps: dict[str, Expr] = {}
    for name, view in (named | {"mask": mask}).items():
        steps |= steps_of(name, view)
    constants: dict[str, Value] = {
        "HEADS": heads.as_int(),
        "SHARING": heads.as_int() // key.shape[1].as_int(),
        "WIDTH": width.as_int(),
        "SCALE": scale,
        "IS_CAUSAL": is_causal,
        "HAS_MASK": mask is not None,
        "HAS_SUMS": has_sums,
        "BLOCK": _BLOCK,
        "WIDTH_BLOCK": 1 << (width.as_int() - 1).bit_length(),
    }
    numbers, passed = number_params(sizes, steps)
    params: tuple[UserParam, ...] = (
        *(Pointer(name, dtype) for name in named),
        mask_param(mask, dtype),
        Pointer("out", dtype),
        Pointer("sums", DType.F32) if has_sums else FixedParam("sums", None),
        *numbers,
        *(FixedParam(name, value) for name, value in constants.items()),
    )
    # Scores without a mask are scaled behind the search for the largest one, which needs a positive
    # scale.
    has_maps = scale > 0.0 and has_even_rows(views) and takes_maps(named, dtype)
    template = FLASH_ATTENTION_TEMPLATE if has_maps else ""
    # By 4 warps, the places of a mask's numbers take more registers than there are.
    options = (("num_stages", 2), ("num_warps", 4 if mask is None else 8))
    kernel = UserKernel(_ENTRY, _SOURCE, _ENTRY, params, options, template)
    programs = ceil_div(length, _BLOCK) * sequences * heads
    return kernel, (*passed, programs, ONE, ONE)
