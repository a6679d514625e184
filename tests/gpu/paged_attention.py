"""Attention of one query, or few, that reads keys and values in pages of a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tests.gpu.case import Case, case
from tests.support.paged_attention import LAYOUTS, PagedForm

_LLAMA = PagedForm(groups=8, heads=4, width=128)


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
        "attention in pages at odd addresses", _attend_copy, partial(_operands, _LLAMA), offset=1
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


def _attend_copy(query: Tensor, *rest: Tensor) -> Tensor:
    """The framework's attention fails if queries are at odd addresses; eager gets a copy."""
    return _LLAMA.attend(query * 1, *rest)


def _joined_operands(form: PagedForm) -> tuple[Tensor, ...]:
    """Queries have the heads of a sequence beside each other."""
    query, *rest = _operands(form)
    return (query.flatten(1), *rest)


def _attend_joined(query: Tensor, *rest: Tensor) -> Tensor:
    """Numbers of heads and widths do not vary."""
    form = replace(_LLAMA, layout="joined")
    heads = query.unflatten(-1, (form.groups * form.heads, 1, form.width))
    return form.attend(heads, *rest)
