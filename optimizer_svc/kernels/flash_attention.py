"""The template of attention with several queries for each head, which keeps scores in registers.

A program computes a tile of queries of one head. It reads the keys and values block by block, and
keeps the largest score so far, the sum of weights and the weighted sum of values of each query in
registers, so that scores never reach memory (Dao et al. 2022, "FlashAttention").

The source here runs on every chip that has Triton. Where buffers are aligned and rows have no gaps
that tensor maps cannot express, the code generator of the chip may have code of its own that
computes the same (`UserKernel.template`).

Keys and values may be in pages of a cache, whose numbers are read from a table; as in gathers of
accelerators, a negative one counts from the end, and all are clamped. Code of a chip copies chunks
of rows that are in one page each.

Shapes:
    query: (b, g * h, q, d); key and value: (b, g, s, d)
    in pages: key: (p, g, size, d); value: (p', g, size, d); tables: (b, n) with n * size >= s
    mask, added to the scores: (b or 1, g * h or 1, q or 1, s)
    out: (b, q, g * h, d), row-major
    sums: (b, g * h, q) f32, row-major: the logarithm of the sum of the exponentials of each query's
        scores, which gradients start from; inf for a query that sees no key
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, ceil_div
from kernelfarm.ir.triton.user_kernel import (
    FLASH_ATTENTION_TEMPLATE,
    FixedParam,
    Pointer,
    UserKernel,
    UserParam,
    Value,
)
from optimizer_svc.analysis.page_chunks import chunk_rows
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.attention_operands import (
    PAGE_OF,
    has_even_rows,
    mask_param,
    number_params,
    shares_table,
    steps_of,
    takes_maps,
)

_ENTRY = "flash_attention"
_BLOCK = 64
_STAGES = 2
_SOURCE = """\
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def flash_attention(
    query, key, value, key_table, value_table, mask, out, sums,
    sequences, length, key_count, key_pages, value_pages,
    query_at, query_batch, query_head, query_row, query_column,
    key_at, key_batch, key_head, key_row, key_column,
    value_at, value_batch, value_head, value_row, value_column,
    mask_at, mask_batch, mask_head, mask_row, mask_column,
    key_table_at, key_table_batch, value_table_at, value_table_batch,
    HEADS: tl.constexpr, SHARING: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_SUMS: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr, PAGE: tl.constexpr, CHUNK: tl.constexpr,
    SHARES_TABLE: tl.constexpr,
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
    key_base = key + key_at + group * key_head
    value_base = value + value_at + group * value_head
    if PAGE == 0:
        key_base += batch * key_batch
        value_base += batch * value_batch
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
        key_places = far_columns * key_row
        value_places = far_columns * value_row
        if PAGE > 0:
            line = far_columns % PAGE
            numbers = key_table + key_table_at + batch * key_table_batch
            page = page_of(numbers, columns, start, seen, key_pages, PAGE, BLOCK)
            key_places = page * key_batch + line * key_row
            if not SHARES_TABLE:
                numbers = value_table + value_table_at + batch * value_table_batch
                page = page_of(numbers, columns, start, seen, value_pages, PAGE, BLOCK)
            value_places = page * value_batch + line * value_row
        block = tl.load(
            key_base + key_places[:, None] + across * key_column,
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
            value_base + value_places[:, None] + across * value_column,
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


@dataclass(frozen=True, slots=True)
class FlashForm:
    """By what scores are multiplied, which keys a query sees, and if log-sum-exps are stored.

    If keys and values are in pages of a cache, `keys` is their number, else None.
    """

    scale: float
    is_causal: bool = False
    has_sums: bool = False
    keys: Expr | None = None


def flash_attention(
    views: Sequence[StridedView], dtypes: Sequence[DType], form: FlashForm
) -> tuple[UserKernel, tuple[Expr, ...]]:
    """The kernel for operands in memory, and the numbers of its launch.

    `views` and `dtypes` are those of query, key, value, the tables of the pages of keys and of
    values if they are in pages, and a mask if there is one. Heads and their widths are known. Grids
    are the last three numbers.
    """
    tables = () if form.keys is None else ("key_table", "value_table")
    named = dict(zip(("query", "key", "value", *tables, "mask"), views, strict=False))
    query, key, mask, dtype = named["query"], named["key"], named.get("mask"), dtypes[0]
    sequences, heads, length, width = query.shape
    constants: dict[str, Value] = {
        "HEADS": heads.as_int(),
        "SHARING": heads.as_int() // key.shape[1].as_int(),
        "WIDTH": width.as_int(),
        "SCALE": form.scale,
        "IS_CAUSAL": form.is_causal,
        "HAS_MASK": mask is not None,
        "HAS_SUMS": form.has_sums,
        "BLOCK": _BLOCK,
        "WIDTH_BLOCK": 1 << (width.as_int() - 1).bit_length(),
        "PAGE": key.shape[2].as_int() if tables else 0,
        "CHUNK": 0 if form.keys is None else chunk_rows(key.shape[2].as_int(), form.keys),
        "SHARES_TABLE": bool(tables) and shares_table(named),
    }
    numbers, passed = number_params(_sizes(named, form), _steps(named))
    params: tuple[UserParam, ...] = (
        *(Pointer(name, dtype) for name in ("query", "key", "value")),
        *_table_params(dict(zip(named, dtypes, strict=True))),
        mask_param(mask, dtype),
        Pointer("out", dtype),
        Pointer("sums", DType.F32) if form.has_sums else FixedParam("sums", None),
        *numbers,
        *(FixedParam(name, value) for name, value in constants.items()),
    )
    template = FLASH_ATTENTION_TEMPLATE if _has_template(named, dtype, form) else ""
    # By 4 warps, the places of a mask's numbers take more registers than there are.
    # Numbers of pages are loaded one block ahead of their keys.
    stages = _STAGES + 1 if tables else _STAGES
    options = (("num_stages", stages), ("num_warps", 4 if mask is None else 8))
    kernel = UserKernel(_ENTRY, PAGE_OF + _SOURCE, _ENTRY, params, options, template)
    programs = ceil_div(length, _BLOCK) * sequences * heads
    return kernel, (*passed, programs, ONE, ONE)


def _sizes(named: Mapping[str, StridedView], form: FlashForm) -> dict[str, Expr]:
    """The numbers of sequences, queries and keys, and those of the pages of caches."""
    query, key, value = (named[name] for name in ("query", "key", "value"))
    is_paged = form.keys is not None
    return {
        "sequences": query.shape[0],
        "length": query.shape[2],
        "key_count": key.shape[2] if form.keys is None else form.keys,
        "key_pages": key.shape[0] if is_paged else ZERO,
        "value_pages": value.shape[0] if is_paged else ZERO,
    }


def _steps(named: Mapping[str, StridedView]) -> dict[str, Expr]:
    """Where operands begin, and their steps; `batch` of keys and values in pages is a page's."""
    steps: dict[str, Expr] = {}
    for name in ("query", "key", "value", "mask"):
        steps |= steps_of(name, named.get(name))
    for name in ("key_table", "value_table"):
        table = named.get(name)
        steps |= {
            f"{name}_at": ZERO if table is None else table.offset,
            f"{name}_batch": ZERO if table is None or table.shape[0] is ONE else table.strides[0],
        }
    return steps


def _table_params(dtypes: Mapping[str, DType]) -> list[UserParam]:
    return [
        Pointer(name, dtypes[name]) if name in dtypes else FixedParam(name, None)
        for name in ("key_table", "value_table")
    ]


def _has_template(named: Mapping[str, StridedView], dtype: DType, form: FlashForm) -> bool:
    """True if the code generator of a chip may have code of its own.

    Scores without a mask are scaled behind the search for the largest one, which needs a positive
    scale.
    """
    mapped = {name: named[name] for name in ("query", "key", "value")}
    has_chunks = form.keys is None or chunk_rows(named["key"].shape[2].as_int(), form.keys) > 0
    return (
        form.scale > 0.0
        and has_chunks
        and has_even_rows(list(named.values()))
        and takes_maps(mapped, dtype)
    )
