"""The template of attention with few queries for each head, whose keys are divided in parts.

A program reads the keys and values of one part of one group of heads once, for all queries of the
group. The queries of all its heads are the rows of small products of matrices, filled up to the 16
rows that matrix instructions have at least. Scores never reach memory: the largest score so far,
the sum of weights and the weighted sum of values are kept in registers ("flash decoding", Dao et
al. 2023). A kernel of prims joins the parts.

Keys and values may be in pages of a cache ("PagedAttention", Kwon et al. 2023). A page's number is
read from a table; as in gathers of accelerators, a negative one counts from the end, and all are
clamped. Servers fill tables up to the longest sequence, so keys in pages are not read if the mask
hides them from all queries.

Shapes:
    query: (b, g * h, q, d); key: (b, g, s, d); value: (b, g, s, e)
    in pages: key: (p, g, size, d); value: (p', g, size, e); tables: (b, n) with n * size >= s
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
from optimizer_svc.kernels.attention_operands import PAGE_OF, shares_table, steps_of

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
    query, key, value, key_table, value_table, mask, sums, tops, totals,
    keys, query_at, query_batch, query_head, query_row, key_at, key_batch, key_group, key_row,
    value_at, value_batch, value_group, value_row, mask_at, mask_batch, mask_head,
    mask_row, key_pages, key_page, key_table_at, key_table_batch,
    value_pages, value_page, value_table_at, value_table_batch,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, DEPTH: tl.constexpr, DEPTH_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, SCALE: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_ROW_MASKS: tl.constexpr, IS_WIDE: tl.constexpr, PAGE: tl.constexpr,
    SHARES_TABLE: tl.constexpr, SKIPS_HIDDEN: tl.constexpr,
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
        shown = seen
        if SKIPS_HIDDEN:
            added = tl.load(mask + mask_at + batch * mask_batch + at, mask=seen, other=0.0)
            shown = seen & (added != float("-inf"))
        if PAGE == 0:
            key_places = at * key_row
            value_places = at * value_row
        else:
            line = at % PAGE
            numbers = key_table + key_table_at + batch * key_table_batch
            page = page_of(numbers, at, start, seen, key_pages, PAGE, BLOCK)
            key_places = page * key_page + line * key_row
            if not SHARES_TABLE:
                numbers = value_table + value_table_at + batch * value_table_batch
                page = page_of(numbers, at, start, seen, value_pages, PAGE, BLOCK)
            value_places = page * value_page + line * value_row
        block = tl.load(
            key_base + key_places[:, None] + across[None, :],
            mask=shown[:, None] & (across < WIDTH)[None, :], other=0.0,
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
                if not SKIPS_HIDDEN:
                    added = tl.load(mask_base + at, mask=seen, other=0.0)
                scores += (added.to(tl.float32) * LOG2_E)[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(top - base)
        total = total * kept + tl.sum(weights, 1)
        block = tl.load(
            value_base + value_places[:, None] + along[None, :],
            mask=shown[:, None] & (along < DEPTH)[None, :], other=0.0,
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
class AttentionForm:
    """In how many parts a launch divides `keys` keys, and by what it multiplies their scores.

    If keys and values are in pages of a cache, `page_size` is the number of keys of a page, else 0.
    """

    parts: int
    scale: float
    keys: Expr
    page_size: int = 0


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """A launch of the template: its kernel, and the values of the numbers that it takes."""

    kernel: UserKernel
    sizes: tuple[Expr, ...]


def attention_parts(
    views: Sequence[StridedView],
    dtypes: Sequence[DType],
    form: AttentionForm,
    bounds: Bounds,
    facts: SplitAttentionFacts,
) -> AttentionParts:
    """The template for operands in memory: query, key, value, and a mask if there is one.

    Tables of the pages of keys and of values are before the mask. Grids are the last three sizes.
    """
    is_paged = form.page_size > 0
    names = ("query", "key", "value", *(("key_table", "value_table") if is_paged else ()), "mask")
    operands = dict(zip(names, views, strict=False))
    query, key, value, mask = (operands.get(name) for name in ("query", "key", "value", "mask"))
    assert query is not None and key is not None and value is not None  # as the chooser found
    groups, queries = key.shape[1], query.shape[2].as_int()
    numbers = {"keys": form.keys} | _numbers(operands) | _page_numbers(operands)
    masks = steps_of("mask", mask)
    has_row_masks = masks["mask_head"] is not ZERO or masks["mask_row"] is not ZERO
    rows = as_expr(form.page_size) if is_paged else form.keys
    heads = query.shape[1].as_int() // groups.as_int()
    constants: dict[str, Value] = {
        "GROUPS": groups.as_int(),
        "HEADS": heads,
        "QUERIES": queries,
        "ROWS": max(_LEAST_ROWS, _power_of_2(heads * queries)),
        **_widths("WIDTH", key),
        **_widths("DEPTH", value),
        "BLOCK": facts.block_keys,
        "PARTS": form.parts,
        "SCALE": form.scale,
        "HAS_MASK": mask is not None,
        "HAS_ROW_MASKS": has_row_masks,
        "IS_WIDE": not all(_is_narrow(v.strides[2] * rows, bounds) for v in (key, value)),
        "PAGE": form.page_size,
        "SHARES_TABLE": is_paged and shares_table(operands),
        "SKIPS_HIDDEN": is_paged and mask is not None and not has_row_masks,
    }
    params, sizes = _params(
        dict(zip(names, dtypes, strict=False)), numbers, constants, _keys_type(form, (key, value))
    )
    # Keys whose pages are loaded before them need twice the stages for as many blocks at a time.
    stages = 2 * facts.num_stages - 1 if is_paged else facts.num_stages
    options = (("num_stages", stages), ("num_warps", facts.num_warps))
    kernel = UserKernel(_ENTRY, PAGE_OF + _SOURCE, _ENTRY, params, options)
    return AttentionParts(kernel, (*sizes, query.shape[0] * groups, as_expr(form.parts), ONE))


def _numbers(operands: Mapping[str, StridedView]) -> dict[str, Expr]:
    """Where the operands are in memory; keys and values in pages have no step of sequences."""
    query, key, value = (operands[name] for name in ("query", "key", "value"))
    is_paged = "key_table" in operands
    masks = steps_of("mask", operands.get("mask"))
    return {
        "query_at": query.offset,
        "query_batch": query.strides[0],
        "query_head": query.strides[1],
        "query_row": ZERO if query.shape[2] is ONE else query.strides[2],
        "key_at": key.offset,
        "key_batch": ZERO if is_paged else key.strides[0],
        "key_group": key.strides[1],
        "key_row": key.strides[2],
        "value_at": value.offset,
        "value_batch": ZERO if is_paged else value.strides[0],
        "value_group": value.strides[1],
        "value_row": value.strides[2],
        **{part: masks[part] for part in ("mask_at", "mask_batch", "mask_head", "mask_row")},
    }


def _page_numbers(operands: Mapping[str, StridedView]) -> dict[str, Expr]:
    """How many pages caches have, their steps, and where the tables are; 0 without pages."""
    is_paged = "key_table" in operands
    found: dict[str, Expr] = {}
    for name in ("key", "value"):
        cache, table = operands[name], operands.get(f"{name}_table")
        found |= {
            f"{name}_pages": cache.shape[0] if is_paged else ZERO,
            f"{name}_page": cache.strides[0] if is_paged else ZERO,
            f"{name}_table_at": table.offset if table is not None else ZERO,
            f"{name}_table_batch": table.strides[0] if table is not None else ZERO,
        }
    return found


def _widths(name: str, view: StridedView) -> dict[str, Value]:
    """The elements of a row, and of the block that holds it."""
    width = view.shape[3].as_int()
    return {name: width, f"{name}_BLOCK": max(_LEAST_ROWS, _power_of_2(width))}


def _keys_type(form: AttentionForm, views: Sequence[StridedView]) -> DType:
    """The type of the number of keys; tables of pages may name a page often, so it has no limit."""
    rows = [view.strides[2] for view in views]
    has_long_rows = all(row.is_constant and row.constant >= _LONG_ROW for row in rows)
    return DType.I32 if has_long_rows and not form.page_size else DType.I64


def _params(
    operands: Mapping[str, DType],
    numbers: Mapping[str, Expr],
    constants: Mapping[str, Value],
    keys_type: DType,
) -> tuple[tuple[UserParam, ...], tuple[Expr, ...]]:
    """The parameters in the order of the function's, and the values of those that are scalars."""
    params: list[UserParam] = []
    for name in ("query", "key", "value", "key_table", "value_table", "mask"):
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
