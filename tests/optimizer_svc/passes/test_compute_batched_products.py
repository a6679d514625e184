"""Batched products of matrices, which kernels compute on some processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelfarm.targets import BatchedProductFacts, target_facts
from tests.support.compiled_kernels import run_targets
from tests.support.contraction_programs import BATCHED, run
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compiled_for
from tests.support.optimizer_passes import before_and_after


@pytest.mark.golden
def test_a_batched_product_becomes_a_sum() -> None:
    assert_golden(
        before_and_after("compute-batched-products", BATCHED, "cpu:x86-64-v4-amd"),
        """\
-- before compute-batched-products: graph
graph prims 1
%0: f32[3, 8, 5]@[40, 5, 1] = input "x"
%1: f32[3, 5, 9]@[45, 9, 1] = input "y"
%2: f32[3, 8, 9]@[72, 9, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.bmm.default") from [0]
return %2: f32[3, 8, 9]@[72, 9, 1]
-- after: graph
graph prims 1
%0: f32[3, 8, 5]@[40, 5, 1] = input "x"
%1: f32[3, 5, 9]@[45, 9, 1] = input "y"
%3: f32[3, 9, 5] = permute(%1; dims=[0, 2, 1]) from [0]
%4: f32[3, 8, 9, 5] = broadcast_in_dim(%0; dims=[0, 1, 3], shape=[{3}, {8}, {9}, {5}]) from [0]
%5: f32[3, 8, 9, 5] = broadcast_in_dim(%3; dims=[0, 2, 3], shape=[{3}, {8}, {9}, {5}]) from [0]
%6: f32[3, 8, 9, 5] = mul(%4, %5) from [0]
%2: f32[3, 8, 9] = sum(%6; dims=[3]) from [0]
return %2: f32[3, 8, 9]@[72, 9, 1]
""",
    )


def run_by(target: str, function: Callable[..., Tensor], *args: Any) -> tuple[Tensor, Counts]:
    facts = replace(target_facts(target), batched_products=BatchedProductFacts(("f32", "bf16"), 8))
    counts = Counts()
    result, _ = run(facts, counts, function, *args)
    return result, counts


def check(ours: Tensor, function: Callable[..., Tensor], *args: Tensor) -> None:
    """The error against float64 is at most 4 times eager's."""
    exact = function(*(a.double() for a in args))
    errors = [(y.double() - exact).abs().max().item() for y in (ours, function(*args))]
    assert errors[0] <= max(4 * errors[1], 1e-6)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("is_left_turned", [False, True])
@pytest.mark.parametrize("is_right_turned", [False, True])
def test_results_are_as_exact_as_eager_s(
    target: str, is_left_turned: bool, is_right_turned: bool
) -> None:
    """Both matrices may be transposed; what follows is a part of the kernel."""
    torch.manual_seed(0)
    b, m, k, n = 3, 50, 37, 70
    x = torch.randn(b, k, m).transpose(1, 2) if is_left_turned else torch.randn(b, m, k)
    y = torch.randn(b, n, k).transpose(1, 2) if is_right_turned else torch.randn(b, k, n)

    def layer(x: Tensor, y: Tensor, added: Tensor) -> Tensor:
        return torch.relu(torch.bmm(x, y) * 0.5 + added)

    args = x, y, torch.randn(b, m, n)
    ours, counts = run_by(target, layer, *args)
    assert (counts.externs, counts.launches) == ([], 1)
    check(ours, layer, *args)


@pytest.mark.parametrize("target", run_targets())
def test_products_of_bf16_are_summed_in_f32_and_rounded_once(target: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 50, 37).bfloat16(), torch.randn(3, 37, 70).bfloat16()
    ours, counts = run_by(target, torch.bmm, x, y)
    assert (counts.externs, counts.launches) == ([], 1)
    exact = torch.bmm(x.double(), y.double())
    torch.testing.assert_close(ours.double(), exact, rtol=2.0**-8, atol=1e-5)


@pytest.mark.parametrize("target", run_targets())
def test_attention_that_a_model_writes_out_is_three_kernels(target: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 40, 16) for _ in range(3))
    mask = torch.zeros(1, 1, 40, 40).masked_fill(torch.ones(40, 40).triu(1).bool(), -1e9)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)) * 0.25 + mask
        return torch.matmul(torch.softmax(scores, -1), value)

    ours, counts = run_by(target, attend, query, key, value, mask)
    assert (counts.externs, counts.launches) == ([], 3)
    check(ours, attend, query, key, value, mask)


@pytest.mark.parametrize("target", run_targets())
def test_what_is_multiplied_is_stored_once(target: str) -> None:
    """It is not computed again for each tile."""
    x, y = torch.randn(2, 30, 20), torch.randn(2, 20, 40)

    def layer(x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(torch.exp(x), torch.tanh(y))

    ours, counts = run_by(target, layer, x, y)
    assert (counts.externs, counts.launches) == ([], 3)
    check(ours, layer, x, y)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_program_multiplies_batches_of_all_sizes(target: str, dtype: torch.dtype) -> None:
    """Batches, rows and columns vary, and so do the terms of the second product."""
    torch.manual_seed(0)
    known = BatchedProductFacts(("f32", "bf16"), 8)
    counts = Counts()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shares = torch.softmax(torch.bmm(query, key.transpose(-1, -2)).float() * 0.25, -1)
        return torch.bmm(shares.to(value.dtype), value)

    fast = compiled_for(attend, replace(target_facts(target), batched_products=known), counts)
    for batch, tokens in ((3, 40), (2, 2), (5, 7), (2, 131)):
        given = [torch.randn(batch, tokens, 16).to(dtype) for _ in range(3)]
        for x in given:
            torch._dynamo.mark_dynamic(x, [0, 1])
        exact = attend(*(x.double() for x in given))
        errors = [(y(*given).double() - exact).abs().max().item() for y in (fast, attend)]
        assert errors[0] <= max(4 * errors[1], 1e-6)
    assert (counts.graphs, counts.externs) == (1, [])
