"""Attention of one query, of few and of many, that reads keys and values in pages of a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tests.gpu.case import Case, case
from tests.support.paged_attention import LAYOUTS, PagedForm

_LLAMA = PagedForm(groups=8, heads=4, width=128)
# A chunk of a prompt.
_CHUNK = replace(_LLAMA, queries=200, is_checked=True)


def paged_attention_cases() -> Iterator[Case]:
    """All layouts, pages of less and more than a block, masks, tables, varying sizes, offsets."""
    for layout in LAYOUTS:
        for size, pages in ((16, 70), (64, 17), (128, 9), (24, 41)):
            form = replace(_LLAMA, layout=layout, size=size, pages=pages)
            yield _case(f"pages of {size}, {layout}", form)
    for dtype in (torch.float16, torch.bfloat16):
        few = replace(_LLAMA, dtype=dtype, pages=70)
        yield _case(f"pages without a mask, {dtype}", replace(few, has_mask=False))
        yield _case(f"pages of few queries, {dtype}", replace(few, queries=5, is_checked=True))
        wide = replace(few, table_dtype=torch.int64, joins_table=True, width=80, seen=1000)
        yield _case(f"pages of a joined table, {dtype}", wide)
        yield _case(f"pages of many sequences, {dtype}", replace(few, sequences=40, pages=20))
    yield case(
        "attention in pages at odd addresses",
        partial(_attend_copy, _LLAMA),
        partial(_operands, _LLAMA),
        offset=1,
    )
    for function in (_LLAMA.decode, _LLAMA.decode_by_slots):
        yield case(
            f"attention in pages to which a token is written, {function.__name__}",
            function,
            _operands_with_row,
        )
    sizes = ((2, 20), (3, 77), (9, 200), (4, 13))
    forms = [replace(_LLAMA, layout="joined", sequences=b, pages=n) for b, n in sizes]
    yield case(
        "attention in pages, with varying numbers of sequences and pages",
        _attend_joined,
        *(partial(_joined_operands, form) for form in forms),
        dynamic=True,
    )


def paged_prefill_cases() -> Iterator[Case]:
    """Many queries: pages that come in chunks, pages of few rows, masks, widths, varying sizes."""
    for layout in LAYOUTS:
        pages_of = {16: 70, 64: 17, 256: 5, 48: 23, 8: 70}
        for size in pages_of if layout != "tokens" else (16,):
            form = replace(_CHUNK, layout=layout, size=size, pages=pages_of[size])
            yield _case(f"pages of {size} by many queries, {layout}", form)
            few = replace(form, queries=40)
            yield _case(f"pages of {size} by 40 queries for each head, {layout}", few)
    for dtype in (torch.float16, torch.bfloat16):
        form = replace(_CHUNK, dtype=dtype, pages=70)
        without = replace(form, has_mask=False)
        yield _case(f"pages of many queries without a mask, {dtype}", without)
        yield _case(f"pages of many causal queries, {dtype}", replace(without, is_causal=True))
        yield _case(f"pages that all queries see alike, {dtype}", replace(form, is_checked=False))
        for width in (32, 40, 64, 80):
            narrow = replace(without, width=width, queries=192, table_dtype=torch.int64)
            yield _case(f"pages of many queries, heads of {width}, {dtype}", narrow)
        cut = replace(form, joins_table=True, seen=1000)
        yield _case(f"pages of many queries, cut within a page, {dtype}", cut)
        whole = replace(form, heads=1, groups=12, sequences=9, size=128, pages=4)
        yield _case(f"pages of many sequences and queries, {dtype}", whole)
    yield case(
        "attention of many queries in pages at odd addresses",
        partial(_attend_copy, _CHUNK),
        partial(_operands, _CHUNK),
        offset=1,
    )
    yield case("attention in pages to which a chunk is written", _CHUNK.prefill, _chunk_operands)
    sizes = ((2, 20), (3, 77), (5, 200), (4, 13))
    forms = [replace(_CHUNK, layout="joined", sequences=b, pages=n) for b, n in sizes]
    yield case(
        "attention of many queries in pages, with varying numbers of sequences and pages",
        _attend_joined_chunk,
        *(partial(_joined_operands, form) for form in forms),
        dynamic=True,
    )


def _case(name: str, form: PagedForm) -> Case:
    return case(f"attention in {name}", form.attend, partial(_operands, form))


def _operands(form: PagedForm) -> tuple[Tensor, ...]:
    """One sequence has no keys, and one a page that counts from the end, where eager allows it."""
    operands = form.operands()
    table, lengths = operands[3:]
    if form.layout != "joined" and not form.joins_table:
        table[-1, 3] = -1
    lengths[0] = 0 if form.sequences > 1 else 1
    return operands


def _operands_with_row() -> tuple[Tensor, ...]:
    """The pages of two sequences, and a token for each."""
    query, key, value, table, lengths = _LLAMA.operands()
    table[:] = torch.arange(table.numel()).view_as(table)
    row = torch.randn(_LLAMA.sequences, _LLAMA.groups, _LLAMA.width).to(_LLAMA.dtype)
    return query, key, value, table, lengths, row


def _chunk_operands() -> tuple[Tensor, ...]:
    """The pages of two sequences, and the rows of a chunk for each."""
    query, key, value, table, lengths = _CHUNK.operands()
    table[:] = torch.randperm(table.numel()).view_as(table)
    lengths[:] = torch.tensor([_CHUNK.queries, _CHUNK.size * _CHUNK.pages - 5])
    shape = (_CHUNK.sequences, _CHUNK.queries, _CHUNK.groups, _CHUNK.width)
    return query, key, value, table, lengths, torch.randn(shape).to(_CHUNK.dtype)


def _attend_copy(form: PagedForm, query: Tensor, *rest: Tensor) -> Tensor:
    """The framework's attention fails if queries are at odd addresses; eager gets a copy."""
    return form.attend(query * 1, *rest)


def _joined_operands(form: PagedForm) -> tuple[Tensor, ...]:
    """Queries have the heads of a sequence beside each other."""
    query, *rest = _operands(form)
    return (query.flatten(1), *rest)


def _attend_joined(query: Tensor, *rest: Tensor) -> Tensor:
    """Numbers of heads and widths do not vary."""
    return _of_joined(_LLAMA, query, *rest)


def _attend_joined_chunk(query: Tensor, *rest: Tensor) -> Tensor:
    """The same with many queries."""
    return _of_joined(_CHUNK, query, *rest)


def _of_joined(form: PagedForm, query: Tensor, *rest: Tensor) -> Tensor:
    heads = query.unflatten(-1, (form.groups * form.heads, form.queries, form.width))
    return replace(form, layout="joined").attend(heads, *rest)
