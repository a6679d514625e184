"""Attention of many queries that reads keys and values in pages, run by an interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.ir.triton.user_kernel import UserKernel
from optimizer_svc.pipeline import OptimizeResult
from tests.support.paged_attention import PagedForm
from tests.support.paged_programs import Runs, compare, paged_kernel, right_program
from tests.support.template_kernels import constant, templates

CHUNK = PagedForm(heads=2, queries=70, is_checked=True, pages=9)
CHUNK_WITHOUT_MASK = replace(CHUNK, has_mask=False)


def paged(found: OptimizeResult) -> UserKernel:
    """The only template kernel, which reads pages; nothing gathers them."""
    kernel = paged_kernel(found, "flash_attention")
    report = dict(found.stages)["report"]
    assert "attention: 1 of several queries, keys in pages, by kernels" in report
    assert "whose pages are copied" not in report
    return kernel


def check(
    form: PagedForm, operands: Sequence[Tensor], function: Callable[..., Tensor] | None = None
) -> UserKernel:
    """The template kernel of a form, whose results are those of eager in float64."""
    found = right_program(form, operands, function)
    # Nothing in memory is as large as the copies of all pages.
    assert found.program.plan.arena_bytes.as_int() < form.dtype.itemsize * _gathered(form)
    return paged(found)


def _gathered(form: PagedForm) -> int:
    """The elements of all keys and values of the pages in the table."""
    return 2 * form.sequences * form.groups * form.size * form.pages * form.width


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("form", "chunk"),
    [
        (CHUNK, 16),
        (replace(CHUNK, layout="heads first", size=64, pages=3, dtype=torch.float16), 64),
        (replace(CHUNK, size=256, pages=2, table_dtype=torch.int64, width=40, has_mask=False), 128),
        (replace(CHUNK, size=48, pages=4, layout="heads first", joins_table=True), 16),
        (replace(CHUNK, layout="joined", heads=1, groups=4, is_checked=False), 16),
        (replace(CHUNK, layout="tokens", size=32, pages=4, sequences=1), 0),
        (replace(CHUNK, layout="tokens", pages=5, has_mask=False, is_causal=True), 0),
        (replace(CHUNK, size=8, pages=17, is_checked=False), 0),
        (replace(CHUNK, has_mask=False, is_causal=True, queries=130), 16),
        (replace(CHUNK, seen=139), 0),
        (replace(CHUNK, size=64, pages=3, seen=144), 16),
        (replace(CHUNK, repeats_heads=True), 16),
        (replace(CHUNK, heads=1, groups=3, sequences=1, width=128, has_mask=False), 16),
    ],
    ids=str,
)
def test_pages_give_the_attention_of_gathered_keys(form: PagedForm, chunk: int) -> None:
    kernel = check(form, form.operands())
    assert constant(kernel, "PAGE") == (1 if form.layout == "tokens" else form.size)
    assert constant(kernel, "CHUNK") == chunk
    assert kernel.template == ("flash_attention" if chunk else "")
    assert constant(kernel, "SHARING") == form.heads
    assert constant(kernel, "SHARES_TABLE") is True


@pytest.mark.parametrize("seen", [None, 139])
def test_pages_of_others_and_rows_behind_the_keys_are_not_read(seen: int | None) -> None:
    form = replace(CHUNK, seen=seen, has_mask=False)
    query, key, value, table, lengths = form.operands()
    table[:] = torch.randperm(table.numel()).view_as(table)
    for cache in (key, value):
        cache[table.numel() :] = torch.nan
        if seen is not None:
            cache[table[:, -1].long(), seen % form.size :] = torch.nan
    check(form, (query, key, value, table, lengths))


def test_pages_are_counted_from_the_end_and_clamped_as_in_gathers_of_accelerators() -> None:
    form = replace(CHUNK, sequences=1)
    query, key, value, table, lengths = form.operands()
    lengths[:] = form.size * form.pages
    table[0, 3] = -1
    check(form, (query, key, value, table, lengths))
    outside, clamped = table.clone(), table.clone()
    outside[0, :2], clamped[0, :2] = torch.tensor([10_000, -10_000]), torch.tensor([17, 0])
    runs = Runs(form.attend)
    results = [runs.result(query, key, value, t, lengths) for t in (outside, clamped)]
    assert torch.equal(*results)


def test_keys_and_values_may_have_tables_of_their_own() -> None:
    form = replace(CHUNK, has_mask=False)
    query, key, value, table, _ = form.operands()

    def attend(q: Tensor, k: Tensor, v: Tensor, of_keys: Tensor, of_values: Tensor) -> Tensor:
        keys, values = form.gathered(k, of_keys), form.gathered(v, of_values)
        return functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    other = table.flip(1).long() - 5
    kernel = check(form, (query, key, value, table, other), attend)
    assert constant(kernel, "SHARES_TABLE") is False


def test_tables_may_be_views() -> None:
    form = replace(CHUNK, has_mask=False)
    query, key, value, table, lengths = form.operands()

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        return form.attend(q, k, v, table[:, 2:8], lengths)

    check(form, (query, key, value, table, lengths), attend)


def test_a_chunk_of_a_prompt_is_written_to_its_pages_before_they_are_read() -> None:
    form = CHUNK
    query, key, value, table, lengths = form.operands()
    table[:] = torch.randperm(table.numel()).view_as(table)
    lengths[:] = torch.tensor([70, 131])
    rows = torch.randn(2, form.queries, form.groups, form.width).to(form.dtype)
    operands = (query, torch.stack([key, value]), table, lengths, rows)

    def prefill(query: Tensor, cache: Tensor, *rest: Tensor) -> Tensor:
        return form.prefill(query, cache[0], cache[1], *rest)

    given = [x.clone() for x in operands]
    runs = Runs(prefill)
    result = runs.result(*given)
    (found,) = runs.programs
    paged(found)
    compare(form, result, prefill, [x.clone() for x in operands])
    prefill(*operands)
    assert torch.equal(given[1], operands[1])
    assert found.program.plan.arena_bytes.as_int() < operands[1].numel() * form.dtype.itemsize


def test_numbers_of_sequences_queries_pages_and_cache_may_vary() -> None:
    small, large = CHUNK, replace(CHUNK, sequences=3, pages=7)
    runs = Runs(CHUNK.attend)
    for form in (small, large):
        operands = form.operands()
        for operand in operands:
            torch._dynamo.mark_dynamic(operand, 0)
        torch._dynamo.mark_dynamic(operands[3], 1)
        compare(form, runs.result(*operands), form.attend, operands)
    (found,) = runs.programs
    kernel = paged(found)
    assert {"sequences", "key_count", "key_pages"} <= {scalar.name for scalar in kernel.scalars}
    # The number of keys is a multiple of the rows of a page, whatever it is.
    assert constant(kernel, "CHUNK") == 16


def test_a_varying_number_of_queries_reads_pages() -> None:
    runs = Runs(lambda q, k, v, table: CHUNK_WITHOUT_MASK.attend(q, k, v, table, table))
    for queries in (70, 90):
        form = replace(CHUNK_WITHOUT_MASK, queries=queries)
        operands = form.operands()[:4]
        torch._dynamo.mark_dynamic(operands[0], 2)
        result = runs.result(*operands)
        compare(form, result, lambda q, k, v, t: form.attend(q, k, v, t, t), operands)  # noqa: B023
    (found,) = runs.programs
    assert "length" in {scalar.name for scalar in paged(found).scalars}


@pytest.mark.parametrize(
    "form",
    [
        replace(CHUNK, layout="tokens", queries=130),
        replace(CHUNK, size=8, queries=130),
        replace(CHUNK, seen=139, queries=130),
    ],
    ids=str,
)
def test_pages_without_chunks_are_copied_for_many_queries(form: PagedForm) -> None:
    operands = form.operands()
    runs = Runs(form.attend)
    compare(form, runs.result(*operands), form.attend, operands)
    (found,) = runs.programs
    (kernel,) = templates(found.program)
    assert kernel.template == "flash_attention"
    assert constant(kernel, "PAGE") == 0
    report = dict(found.stages)["report"]
    assert (
        "attention: 1 whose pages are copied: chunks of 16 rows do not divide a page and the keys,"
        " and more than 256 queries share a head of keys" in report
    )
