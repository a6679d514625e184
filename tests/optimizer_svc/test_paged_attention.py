"""Attention that reads keys and values in pages of a cache, run by an interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.text import print_graph
from kernelfarm.ir.triton.user_kernel import UserKernel
from optimizer_svc.pipeline import OptimizeResult
from tests.support.paged_attention import PagedForm
from tests.support.paged_programs import Runs, compare, optimized, paged_kernel, right_program
from tests.support.template_kernels import constant
from tests.support.traced_graphs import recording


def paged(found: OptimizeResult) -> UserKernel:
    """The only template kernel, which reads pages; the graph's gathers have no kernel."""
    return paged_kernel(found, "attention_parts")


def check(
    form: PagedForm, operands: Sequence[Tensor], function: Callable[..., Tensor] | None = None
) -> UserKernel:
    """The template kernel of a form, whose results are those of eager in float64."""
    return paged(right_program(form, operands, function))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("form", "page"),
    [
        (PagedForm(), 16),
        (PagedForm(layout="heads first", size=64, pages=5, dtype=torch.float16), 64),
        (PagedForm(size=128, pages=3, table_dtype=torch.int64, width=40), 128),
        (PagedForm(size=48, pages=5, layout="heads first", joins_table=True), 48),
        (PagedForm(layout="joined", heads=1, groups=4), 16),
        (PagedForm(layout="tokens", sequences=3, has_mask=False), 1),
        (PagedForm(groups=1, heads=4, joins_table=True, has_mask=False), 16),
        (PagedForm(sequences=1, joins_table=True), 16),
        (PagedForm(queries=4, is_checked=True, seen=290), 16),
        (PagedForm(queries=3, has_mask=False, size=64, pages=4), 64),
        (PagedForm(repeats_heads=True), 16),
    ],
    ids=str,
)
def test_pages_give_the_attention_of_gathered_keys(form: PagedForm, page: int) -> None:
    operands = form.operands()
    if form.has_mask:
        operands[-1][0] = 0  # a sequence without keys
    kernel = check(form, operands)
    assert constant(kernel, "PAGE") == page
    assert constant(kernel, "GROUPS") == form.groups
    assert constant(kernel, "SHARES_TABLE") is True
    assert constant(kernel, "SKIPS_HIDDEN") is (form.has_mask and not form.is_checked)


def test_pages_are_counted_from_the_end_and_clamped_as_in_gathers_of_accelerators() -> None:
    form = PagedForm()
    query, key, value, table, lengths = form.operands()
    lengths[:] = form.size * form.pages
    table[0, 3] = -1
    check(form, (query, key, value, table, lengths))
    outside, clamped = table.clone(), table.clone()
    outside[0, :2], clamped[0, :2] = torch.tensor([10_000, -10_000]), torch.tensor([75, 0])
    with pytest.raises(IndexError):
        form.attend(query, key, value, outside, lengths)
    runs = Runs(form.attend)
    results = [runs.result(query, key, value, t, lengths) for t in (outside, clamped)]
    assert torch.equal(*results)
    assert len(runs.programs) == 1


def test_hidden_pages_are_not_read() -> None:
    """A page that no query sees may hold anything."""
    form = PagedForm()
    query, key, value, table, lengths = form.operands()
    table[:] = torch.arange(table.numel()).view_as(table)
    lengths[:] = 100  # of 7 pages of 16
    runs = Runs(form.attend)
    expected = runs.result(query, key, value, table, lengths)
    hidden = table[:, 7:].flatten().long()
    key[hidden], value[hidden] = torch.nan, torch.inf
    assert torch.equal(runs.result(query, key, value, table, lengths), expected)
    assert expected.isfinite().all()


def test_keys_and_values_may_have_tables_of_their_own() -> None:
    form = PagedForm()
    query, key, value, table, _ = form.operands()

    def attend(q: Tensor, k: Tensor, v: Tensor, of_keys: Tensor, of_values: Tensor) -> Tensor:
        keys, values = form.gathered(k, of_keys), form.gathered(v, of_values)
        return functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    other = table.flip(1).long() - 5
    kernel = check(form, (query, key, value, table, other), attend)
    assert constant(kernel, "SHARES_TABLE") is False


def test_a_cache_of_keys_and_values_in_one_tensor_is_read_where_it_is() -> None:
    form = PagedForm()
    query, key, value, table, lengths = form.operands()

    def attend(query: Tensor, cache: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        return form.attend(query, cache[0], cache[1], table.long(), lengths)

    kernel = check(form, (query, torch.stack([key, value]), table, lengths), attend)
    assert constant(kernel, "SHARES_TABLE") is True


@pytest.mark.parametrize(("by_slots", "axis"), [(False, 0), (False, 1), (True, 0)])
def test_a_token_is_written_to_a_cache_of_keys_and_values(by_slots: bool, axis: int) -> None:
    form = PagedForm()
    decode = form.decode_by_slots if by_slots else form.decode

    def stacked(query: Tensor, cache: Tensor, *rest: Tensor) -> Tensor:
        return decode(query, cache.select(axis, 0), cache.select(axis, 1), *rest)

    query, key, value, table, lengths = form.operands()
    lengths[:] = torch.tensor([17, 40])
    row = torch.randn(2, 2, 32, dtype=form.dtype)
    operands = (query, torch.stack([key, value], axis), table, lengths, row)
    given = [x.clone() for x in operands]
    runs = Runs(stacked)
    result = runs.result(*given)
    (found,) = runs.programs
    paged(found)
    compare(form, result, stacked, [x.clone() for x in operands])
    stacked(*operands)
    assert torch.equal(given[1], operands[1])
    assert found.program.plan.arena_bytes.as_int() < operands[1].numel()


def test_pages_are_read_before_a_token_replaces_one_of_theirs() -> None:
    form = PagedForm()

    def attend_first(
        query: Tensor, key: Tensor, value: Tensor, table: Tensor, *rest: Tensor
    ) -> Tensor:
        lengths, row = rest
        found = form.attend(query, key, value, table, lengths)
        for cache in (key, value):
            cache[table[:, 0].long(), 3] = row
        return found

    operands = (*form.operands(), torch.randn(2, 2, 32, dtype=form.dtype))
    given = [x.clone() for x in operands]
    runs = Runs(attend_first)
    result = runs.result(*given)
    paged(runs.programs[0])
    compare(form, result, attend_first, [x.clone() for x in operands])
    attend_first(*operands)
    assert torch.equal(given[2], operands[2])


@pytest.mark.parametrize("by_slots", [False, True])
def test_a_token_is_written_to_its_page_before_that_is_read(by_slots: bool) -> None:
    form = PagedForm()
    row = torch.randn(2, 2, 32, dtype=form.dtype)
    decode = form.decode_by_slots if by_slots else form.decode
    operands = (*form.operands(), row)
    operands[4][:] = torch.tensor([17, 40])
    given = [x.clone() for x in operands]
    runs = Runs(decode)
    result = runs.result(*given)
    (found,) = runs.programs
    paged(found)
    compare(form, result, decode, [x.clone() for x in operands])
    decode(*operands)
    assert torch.equal(given[1], operands[1])
    # Nothing is as large as a cache: neither of them is copied.
    assert found.program.plan.arena_bytes.as_int() < operands[1].numel()


def test_numbers_of_sequences_pages_and_cache_may_vary() -> None:
    form = PagedForm(heads=2)
    small, large = form.operands(), replace(form, sequences=5, pages=11).operands(seed=1)
    for operand in small:
        torch._dynamo.mark_dynamic(operand, 0)
    torch._dynamo.mark_dynamic(small[3], 1)
    runs = Runs(form.attend)
    for operands in (small, large):
        compare(form, runs.result(*operands), form.attend, operands)
    (found,) = runs.programs
    assert {"keys", "key_pages"} <= {scalar.name for scalar in paged(found).scalars}


def test_sizes_that_divide_each_other_may_all_vary() -> None:
    """Rows of a page are a size divided by two others: assumed sizes need not fit each other."""
    form = PagedForm(layout="joined")
    captured: list[CapturedGraph] = []
    torch._dynamo.reset()
    torch.compile(form.attend, backend=recording(captured), dynamic=True)(*form.operands())
    assert "//" in print_graph(captured[0].graph)
    assert optimized(captured[0]).program.plan.steps


def test_tables_may_be_views_or_computed() -> None:
    form = PagedForm()
    query, key, value, table, lengths = form.operands()
    tables: dict[Callable[[Tensor], Tensor], Tensor] = {
        (lambda table: table[:, 2:14]): table,
        (lambda table: table.t()): table.t().contiguous(),
        (lambda table: table + 1): table - 1,
    }
    for change, given in tables.items():

        def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
            return form.attend(q, k, v, change(table), lengths)  # noqa: B023 (called at once)

        check(form, (query, key, value, given, lengths), attend)


def test_keys_behind_a_varying_number_are_cut_off_without_a_mask() -> None:
    form = PagedForm(sequences=1, has_mask=False)
    query, key, value, table, _ = form.operands()

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor, seen: Tensor) -> Tensor:
        return replace(form, seen=seen.shape[0]).attend(q, k, v, table, seen)

    runs = Runs(attend)
    for count in (290, 201):
        seen = torch.zeros(count)
        torch._dynamo.mark_dynamic(seen, 0)
        operands = (query, key, value, table, seen)
        compare(form, runs.result(*operands), attend, operands)
    (found,) = runs.programs
    assert [scalar.name for scalar in paged(found).scalars] == ["keys"]
