"""The template of attention with few queries for each head, whose keys are divided in parts.

A program reads the keys and values of one part of one group of heads once, for all queries of the
group. The queries of all its heads are the rows of small products of matrices, filled up to the 16
rows that matrix instructions have at least. Scores never reach memory: the largest score so far,
the sum of weights and the weighted sum of values are kept in registers ("flash decoding", Dao et
al. 2023). A kernel of prims joins the parts.

Shapes:
    query: (b, g * h, q, d); key: (b, g, s, d); value: (b, g, s, e)
    mask, added to the scores: (b or 1, g * h or 1, q or 1, s)
    sums: (b, g, parts, h * q, e) f32; tops and totals: (b, g, parts, h * q) f32
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.triton.user_kernel import (
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
    Value,
)
from kernelfarm.targets import SplitAttentionFacts
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.attention_operands import steps_of

_ENTRY = "attention_parts"
_LEAST_ROWS = 16
_DIVISOR = 16
_NARROW_LIMIT = 1 << 31
# 2^31 keys so far apart take 256 GiB, more than a GPU has: then their number has 32 bits.
_LONG_ROW = 64
_SOURCE = """\
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def attention_parts(
    query, key, value, mask, sums, tops, totals,
    keys, query_at, query_batch, query_head, query_row, key_at, key_batch, key_group, key_row,
    value_at, value_batch, value_group, value_row, mask_at, mask_batch, mask_head,
    mask_row,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, DEPTH: tl.constexpr, DEPTH_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, SCALE: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_ROW_MASKS: tl.constexpr, IS_WIDE: tl.constexpr,
):
    batch = (tl.program_id(0) // GROUPS).to(tl.int64)
    group = (tl.program_id(0) % GROUPS).to(tl.int64)
    part = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    across = tl.arange(0, WIDTH_BLOCK)
    along = tl.arange(0, DEPTH_BLOCK)
    own = rows < HEADS * QUERIES
    heads = group * HEADS + rows // QUERIES
    lines = (rows % QUERIES).to(tl.int64)
    places = query + query_at + batch * query_batch + heads * query_head + lines * query_row
    queries = tl.load(
        places[:, None] + across[None, :],
        mask=own[:, None] & (across < WIDTH)[None, :], other=0.0,
    )
    key_base = key + key_at + batch * key_batch + group * key_group
    value_base = value + value_at + batch * value_batch + group * value_group
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DEPTH_BLOCK], tl.float32)
    length = tl.cdiv(tl.cdiv(keys, PARTS), BLOCK) * BLOCK
    for start in range(part * length, tl.minimum(part * length + length, keys), BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = at < keys
        if IS_WIDE:
            at = at.to(tl.int64)
        block = tl.load(
            key_base + (at * key_row)[:, None] + across[None, :],
            mask=seen[:, None] & (across < WIDTH)[None, :], other=0.0,
        )
        scores = tl.dot(queries, tl.trans(block)) * (SCALE * LOG2_E)
        if HAS_MASK:
            mask_base = mask + mask_at + batch * mask_batch
            if HAS_ROW_MASKS:
                added = tl.load(
                    mask_base + (heads * mask_head + lines * mask_row)[:, None] + at[None, :],
                    mask=own[:, None] & seen[None, :], other=0.0,
                )
                scores += added.to(tl.float32) * LOG2_E
            else:
                added = tl.load(mask_base + at, mask=seen, other=0.0)
                scores += (added.to(tl.float32) * LOG2_E)[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(top - base)
        total = total * kept + tl.sum(weights, 1)
        block = tl.load(
            value_base + (at * value_row)[:, None] + along[None, :],
            mask=seen[:, None] & (along < DEPTH)[None, :], other=0.0,
        )
        found = found * kept[:, None] + tl.dot(weights.to(block.dtype), block)
        top = higher
    stored = (tl.program_id(0).to(tl.int64) * PARTS + part) * (HEADS * QUERIES) + rows
    tl.store(tops + stored, top * LN_2, mask=own)
    tl.store(totals + stored, total, mask=own)
    tl.store(
        sums + (stored * DEPTH)[:, None] + along[None, :], found,
        mask=own[:, None] & (along < DEPTH)[None, :],
    )
"""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """A launch of the template: its kernel, and the values of the numbers that it takes."""

    kernel: UserKernel
    sizes: tuple[Expr, ...]


def attention_parts(
    views: Sequence[StridedView],
    dtypes: Sequence[DType],
    form: tuple[int, float],
    bounds: Bounds,
    facts: SplitAttentionFacts,
) -> AttentionParts:
    """The template for operands in memory: query, key, value, and a mask if there is one.

    `form` is the number of parts, and the scale of the scores. Grids are the last three sizes.
    """
    parts, scale = form
    query, key, value = views[:3]
    batch, groups, keys, width = key.shape
    heads = query.shape[1].as_int() // groups.as_int()
    queries = query.shape[2].as_int()
    depth = value.shape[3].as_int()
    mask = views[3] if len(views) > 3 else None
    masks = steps_of("mask", mask)
    numbers: dict[str, Expr] = {
        "keys": keys,
        "query_at": query.offset,
        "query_batch": query.strides[0],
        "query_head": query.strides[1],
        "query_row": ZERO if queries == 1 else query.strides[2],
        "key_at": key.offset,
        "key_batch": key.strides[0],
        "key_group": key.strides[1],
        "key_row": key.strides[2],
        "value_at": value.offset,
        "value_batch": value.strides[0],
        "value_group": value.strides[1],
        "value_row": value.strides[2],
        **{part: masks[part] for part in ("mask_at", "mask_batch", "mask_head", "mask_row")},
    }
    constants: dict[str, Value] = {
        "GROUPS": groups.as_int(),
        "HEADS": heads,
        "QUERIES": queries,
        "ROWS": max(_LEAST_ROWS, _power_of_2(heads * queries)),
        "WIDTH": width.as_int(),
        "WIDTH_BLOCK": max(_LEAST_ROWS, _power_of_2(width.as_int())),
        "DEPTH": depth,
        "DEPTH_BLOCK": max(_LEAST_ROWS, _power_of_2(depth)),
        "BLOCK": facts.block_keys,
        "PARTS": parts,
        "SCALE": scale,
        "HAS_MASK": mask is not None,
        "HAS_ROW_MASKS": masks["mask_head"] is not ZERO or masks["mask_row"] is not ZERO,
        "IS_WIDE": not all(_is_narrow(v.strides[2] * keys, bounds) for v in (key, value)),
    }
    rows = (key.strides[2], value.strides[2])
    has_long_rows = all(row.is_constant and row.constant >= _LONG_ROW for row in rows)
    keys_type = DType.I32 if has_long_rows else DType.I64
    params, sizes = _params(dtypes, numbers, constants, keys_type)
    options = (("num_stages", facts.num_stages), ("num_warps", facts.num_warps))
    kernel = UserKernel(_ENTRY, _SOURCE, _ENTRY, params, options)
    return AttentionParts(kernel, (*sizes, batch * groups, as_expr(parts), ONE))


def _params(
    dtypes: Sequence[DType],
    numbers: Mapping[str, Expr],
    constants: Mapping[str, Value],
    keys_type: DType,
) -> tuple[tuple[UserParam, ...], tuple[Expr, ...]]:
    """The parameters in the order of the function's, and the values of those that are scalars."""
    operands = dict(zip(("query", "key", "value", "mask"), dtypes, strict=False))
    params: list[UserParam] = []
    for name in ("query", "key", "value", "mask"):
        params.append(Pointer(name, operands[name]) if name in operands else FixedParam(name, None))
    params += [Pointer(name, DType.F32) for name in ("sums", "tops", "totals")]
    sizes = []
    for name, number in numbers.items():
        if number.is_constant:
            params.append(FixedParam(name, number.constant))
            continue
        parts = (number.constant, *(coefficient for _, coefficient in number.terms))
        divisor = _DIVISOR if math.gcd(*parts) % _DIVISOR == 0 else 1
        params.append(Scalar(name, keys_type if name == "keys" else DType.I64, divisor))
        sizes.append(number)
    params += [FixedParam(name, value) for name, value in constants.items()]
    return tuple(params), tuple(sizes)


def _is_narrow(reach: Expr, bounds: Bounds) -> bool:
    """True if 32 bits hold a distance."""
    _, high = bounds.interval(reach)
    return high is not None and high < _NARROW_LIMIT


def _power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
