"""Chosen products become sums that one kernel computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.targets import FewRowFacts, ProductTimes, TargetFacts, target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.optimizer_passes import before_and_after
from tests.support.traced_graphs import traced_one

ROWS_OF_BF16 = """\
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%3: bf16[2, 1024]@[1024, 1] = extern(%0, %2; is_contraction=true, node=1, op="aten.mm.default") from [1]
return %3: bf16[2, 1024]@[1024, 1]
"""


@pytest.mark.golden
def test_each_row_becomes_a_sum_in_f32_that_is_rounded_once() -> None:
    assert_golden(
        before_and_after("compute-products", ROWS_OF_BF16, "cpu:x86-64-v4"),
        """\
-- before compute-products: graph
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%3: bf16[2, 1024]@[1024, 1] = extern(%0, %2; is_contraction=true, node=1, op="aten.mm.default") from [1]
return %3: bf16[2, 1024]@[1024, 1]
-- after: graph
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%4: f32[2, 1024] = convert(%0; dtype=f32) from [1]
%5: f32[1024, 1024] = convert(%1; dtype=f32) from [1]
%6: f32[1, 1024] = slice(%4; limits=[{1}, {1024}], starts=[{0}, {0}], steps=[{1}, {1}]) from [1]
%7: f32[1024, 1024] = broadcast_in_dim(%6; dims=[0, 1], shape=[{1024}, {1024}]) from [1]
%8: f32[1024, 1024] = mul(%7, %5) from [1]
%9: f32[1024] = sum(%8; dims=[1]) from [1]
%10: f32[1, 1024] = slice(%4; limits=[{2}, {1024}], starts=[{1}, {0}], steps=[{1}, {1}]) from [1]
%11: f32[1024, 1024] = broadcast_in_dim(%10; dims=[0, 1], shape=[{1024}, {1024}]) from [1]
%12: f32[1024, 1024] = mul(%11, %5) from [1]
%13: f32[1024] = sum(%12; dims=[1]) from [1]
%14: bf16[1024] = convert(%9; dtype=bf16) from [1]
%15: bf16[1024] = convert(%13; dtype=bf16) from [1]
%16: bf16[1, 1024] = reshape(%14; shape=[{1}, {1024}]) from [1]
%17: bf16[1, 1024] = reshape(%15; shape=[{1}, {1024}]) from [1]
%3: bf16[2, 1024] = cat(%16, %17; dim=0) from [1]
return %3: bf16[2, 1024]@[1024, 1]
""",
    )


def by_kernels(target: str, rows: int) -> TargetFacts:
    """A target whose kernels compute all products of up to so many rows."""
    times = ProductTimes(1, library=(("1", 2.0),), kernel=((str(rows), 1.0),))
    return replace(target_facts(target), few_rows=FewRowFacts(wide=times, narrow=times))


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 4, 9])
def test_products_by_kernels_are_as_exact_as_the_library_s(
    rows: int, dtype: torch.dtype, target: str
) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 1027).to(dtype), torch.randn(131, 1027).to(dtype)
    counts = Counts()
    run = compile_here(traced_one(functional.linear, x, weight), counts, by_kernels(target, rows))
    assert not counts.externs
    exact = functional.linear(x.double(), weight.double())
    (ours,), eager = run([x, weight]), functional.linear(x, weight)
    assert ours.dtype is dtype
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= 4 * errors[1]


def test_what_follows_a_product_of_one_row_is_fused_with_it() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.linear(x, weight)) + residual

    torch.manual_seed(0)
    args = [torch.randn(1, 64), torch.randn(48, 64), torch.randn(1, 48)]
    counts = Counts()
    run = compile_here(traced_one(layer, *args), counts, by_kernels("cpu:x86-64-v3", 1))
    assert (counts.launches, counts.externs) == (1, [])
    torch.testing.assert_close(run(args)[0], layer(*args))


@pytest.mark.parametrize("rows", [1, 4])
def test_what_precedes_a_product_is_computed_once(rows: int) -> None:
    """Inside the product's loop it would be computed again for each row of the weight."""

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.relu() + 1, weight)

    args = [torch.randn(rows, 64), torch.randn(80, 64)]
    graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    kernels = optimize(graph, by_kernels("cpu:x86-64-v3", rows)).program.kernels
    operations = [{getattr(statement, "op", "") for statement in k.body} for k in kernels]
    assert any("maximum" in found for found in operations)
    assert not any({"maximum", "sum"} <= found for found in operations)
