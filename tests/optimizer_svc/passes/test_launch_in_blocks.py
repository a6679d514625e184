"""Kernels of attention that are launched for one block of its scores after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.ir.program_ir import BufferKind, Launch
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import TargetFacts, target_facts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.compiled_kernels import unless_it_runs
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compiled_for
from tests.support.optimizer_passes import before_and_after

TARGET = "cpu:x86-64-v4-amd"
PAIRS = "cpu:x86-64-v4-bf16-amd"
TARGETS = [pytest.param(name, marks=unless_it_runs(name)) for name in ("cpu:x86-64-v3-amd", TARGET)]
CAUSAL = """\
graph prims 1
%0: f32[1, 4, 1024, 64]@[262144, 64, 256, 1] = input "q"
%1: f32[1, 4, 1024, 64]@[262144, 64, 256, 1] = input "k"
%2: f32[1, 4, 1024, 64]@[262144, 64, 256, 1] = input "v"
%3: f32[1, 4, 1024, 64]@[262144, 64, 256, 1] = extern(%0, %1, %2; is_causal=true, is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.125) from [0]
return %3: f32[1, 4, 1024, 64]@[262144, 64, 256, 1]
"""
PLAIN = CAUSAL.replace("is_causal=true, ", "")


@pytest.mark.golden
def test_a_block_of_causal_attention_has_queries_of_one_head_and_the_keys_that_they_see() -> None:
    found = before_and_after("launch-in-blocks", CAUSAL, TARGET).partition("-- after")[2]
    assert_golden(
        found,
        """\
: built
kernel fused_mul_sum_NAME
# captured node 0: sum, mul
size s0 from 0 to 3
size s1 from 0 to 896
size s2 from 0 to 1023
size s3 from 1 to 1024
param in in0: f32[262144]
param in in1: f32[262144]
param out out0: f32[131072]
for d1 in 128
for d2 in s3
reduce r0 in 64
  %0: f32 = load in0[256*d1 + r0 + 64*s0 + 256*s1]
  %1: f32 = load in1[256*d2 + r0 + 64*s0 + 256*s2]
  %2: f32 = mul %0, %1
  %3: f32 = sum %2
  store out0[1024*d1 + d2 + s2] = %3
kernel fused_amax_eq_exp_sum_NAME
# captured node 0: amax, where, ge, iota, mul, exp, sub, eq, sum
size s0 from 0 to 3
size s1 from 0 to 896
size s2 from 0 to 1023
size s3 from 1 to 1024
param inout inout0: f32[131072]
param out out0: f32[128]
param out out1: f32[128]
for d1 in 128
reduce r0 in s3
  %0: i64 = index d1 + s1
  %1: i64 = index r0 + s2
  %2: bool = ge %0, %1
  %3: f32 = load inout0[1024*d1 + r0 + s2]
  %4: f32 = 0.125
  %5: f32 = mul %3, %4
  %6: f32 = -inf
  %7: f32 = where %2, %5, %6
  %8: f32 = amax %7
  store out0[d1] = %8
  %10: bool = eq %8, %6
  %11: f32 = 0.0
  %12: f32 = where %10, %11, %8
  %13: f32 = sub %7, %12
  %14: f32 = exp %13
  %15: f32 = sum %14
  store out1[d1] = %15
  store inout0[1024*d1 + r0 + s2] = %14
kernel fused_mul_sum_eq_div_NAME
# captured node 0: sum, mul, div, where, eq
size s0 from 0 to 3
size s1 from 0 to 896
size s2 from 0 to 1023
size s3 from 1 to 1024
param in in0: f32[131072]
param in in1: f32[262144]
param in in2: f32[128]
param in in3: f32[128]
param out out0: f32[262144]
for d0 in 128
for d2 in 64
reduce r0 in s3
  %0: f32 = load in0[1024*d0 + r0 + s2]
  %1: f32 = load in1[d2 + 256*r0 + 64*s0 + 256*s2]
  %2: f32 = mul %0, %1
  %3: f32 = sum %2
  %4: f32 = load in2[d0]
  %5: f32 = -inf
  %6: bool = eq %4, %5
  %7: f32 = 1.0
  %8: f32 = load in3[d0]
  %9: f32 = where %6, %7, %8
  %10: f32 = div %3, %9
  store out0[256*d0 + d2 + 64*s0 + 256*s1] = %10
step: launch 0(%0, %1, %41; 0, 0, 0, 128)
step: launch 1(%41, %42, %43; 0, 0, 0, 128)
step: launch 2(%41, %2, %42, %43, %40; 0, 0, 0, 128)
step: launch 0(%0, %1, %44; 0, 128, 0, 256)
step: launch 1(%44, %45, %46; 0, 128, 0, 256)
step: launch 2(%44, %2, %45, %46, %40; 0, 128, 0, 256)
step: launch 0(%0, %1, %47; 0, 256, 0, 384)
step: launch 1(%47, %48, %49; 0, 256, 0, 384)
step: launch 2(%47, %2, %48, %49, %40; 0, 256, 0, 384)
step: launch 0(%0, %1, %50; 0, 384, 0, 512)
step: launch 1(%50, %51, %52; 0, 384, 0, 512)
step: launch 2(%50, %2, %51, %52, %40; 0, 384, 0, 512)
step: launch 0(%0, %1, %53; 0, 512, 0, 640)
step: launch 1(%53, %54, %55; 0, 512, 0, 640)
step: launch 2(%53, %2, %54, %55, %40; 0, 512, 0, 640)
step: launch 0(%0, %1, %56; 0, 640, 0, 768)
step: launch 1(%56, %57, %58; 0, 640, 0, 768)
step: launch 2(%56, %2, %57, %58, %40; 0, 640, 0, 768)
step: launch 0(%0, %1, %59; 0, 768, 0, 896)
step: launch 1(%59, %60, %61; 0, 768, 0, 896)
step: launch 2(%59, %2, %60, %61, %40; 0, 768, 0, 896)
step: launch 0(%0, %1, %62; 0, 896, 0, 1024)
step: launch 1(%62, %63, %64; 0, 896, 0, 1024)
step: launch 2(%62, %2, %63, %64, %40; 0, 896, 0, 1024)
step: launch 0(%0, %1, %65; 1, 0, 0, 128)
step: launch 1(%65, %66, %67; 1, 0, 0, 128)
step: launch 2(%65, %2, %66, %67, %40; 1, 0, 0, 128)
step: launch 0(%0, %1, %68; 1, 128, 0, 256)
step: launch 1(%68, %69, %70; 1, 128, 0, 256)
step: launch 2(%68, %2, %69, %70, %40; 1, 128, 0, 256)
step: launch 0(%0, %1, %71; 1, 256, 0, 384)
step: launch 1(%71, %72, %73; 1, 256, 0, 384)
step: launch 2(%71, %2, %72, %73, %40; 1, 256, 0, 384)
step: launch 0(%0, %1, %74; 1, 384, 0, 512)
step: launch 1(%74, %75, %76; 1, 384, 0, 512)
step: launch 2(%74, %2, %75, %76, %40; 1, 384, 0, 512)
step: launch 0(%0, %1, %77; 1, 512, 0, 640)
step: launch 1(%77, %78, %79; 1, 512, 0, 640)
step: launch 2(%77, %2, %78, %79, %40; 1, 512, 0, 640)
step: launch 0(%0, %1, %80; 1, 640, 0, 768)
step: launch 1(%80, %81, %82; 1, 640, 0, 768)
step: launch 2(%80, %2, %81, %82, %40; 1, 640, 0, 768)
step: launch 0(%0, %1, %83; 1, 768, 0, 896)
step: launch 1(%83, %84, %85; 1, 768, 0, 896)
step: launch 2(%83, %2, %84, %85, %40; 1, 768, 0, 896)
step: launch 0(%0, %1, %86; 1, 896, 0, 1024)
step: launch 1(%86, %87, %88; 1, 896, 0, 1024)
step: launch 2(%86, %2, %87, %88, %40; 1, 896, 0, 1024)
step: launch 0(%0, %1, %89; 2, 0, 0, 128)
step: launch 1(%89, %90, %91; 2, 0, 0, 128)
step: launch 2(%89, %2, %90, %91, %40; 2, 0, 0, 128)
step: launch 0(%0, %1, %92; 2, 128, 0, 256)
step: launch 1(%92, %93, %94; 2, 128, 0, 256)
step: launch 2(%92, %2, %93, %94, %40; 2, 128, 0, 256)
step: launch 0(%0, %1, %95; 2, 256, 0, 384)
step: launch 1(%95, %96, %97; 2, 256, 0, 384)
step: launch 2(%95, %2, %96, %97, %40; 2, 256, 0, 384)
step: launch 0(%0, %1, %98; 2, 384, 0, 512)
step: launch 1(%98, %99, %100; 2, 384, 0, 512)
step: launch 2(%98, %2, %99, %100, %40; 2, 384, 0, 512)
step: launch 0(%0, %1, %101; 2, 512, 0, 640)
step: launch 1(%101, %102, %103; 2, 512, 0, 640)
step: launch 2(%101, %2, %102, %103, %40; 2, 512, 0, 640)
step: launch 0(%0, %1, %104; 2, 640, 0, 768)
step: launch 1(%104, %105, %106; 2, 640, 0, 768)
step: launch 2(%104, %2, %105, %106, %40; 2, 640, 0, 768)
step: launch 0(%0, %1, %107; 2, 768, 0, 896)
step: launch 1(%107, %108, %109; 2, 768, 0, 896)
step: launch 2(%107, %2, %108, %109, %40; 2, 768, 0, 896)
step: launch 0(%0, %1, %110; 2, 896, 0, 1024)
step: launch 1(%110, %111, %112; 2, 896, 0, 1024)
step: launch 2(%110, %2, %111, %112, %40; 2, 896, 0, 1024)
step: launch 0(%0, %1, %113; 3, 0, 0, 128)
step: launch 1(%113, %114, %115; 3, 0, 0, 128)
step: launch 2(%113, %2, %114, %115, %40; 3, 0, 0, 128)
step: launch 0(%0, %1, %116; 3, 128, 0, 256)
step: launch 1(%116, %117, %118; 3, 128, 0, 256)
step: launch 2(%116, %2, %117, %118, %40; 3, 128, 0, 256)
step: launch 0(%0, %1, %119; 3, 256, 0, 384)
step: launch 1(%119, %120, %121; 3, 256, 0, 384)
step: launch 2(%119, %2, %120, %121, %40; 3, 256, 0, 384)
step: launch 0(%0, %1, %122; 3, 384, 0, 512)
step: launch 1(%122, %123, %124; 3, 384, 0, 512)
step: launch 2(%122, %2, %123, %124, %40; 3, 384, 0, 512)
step: launch 0(%0, %1, %125; 3, 512, 0, 640)
step: launch 1(%125, %126, %127; 3, 512, 0, 640)
step: launch 2(%125, %2, %126, %127, %40; 3, 512, 0, 640)
step: launch 0(%0, %1, %128; 3, 640, 0, 768)
step: launch 1(%128, %129, %130; 3, 640, 0, 768)
step: launch 2(%128, %2, %129, %130, %40; 3, 640, 0, 768)
step: launch 0(%0, %1, %131; 3, 768, 0, 896)
step: launch 1(%131, %132, %133; 3, 768, 0, 896)
step: launch 2(%131, %2, %132, %133, %40; 3, 768, 0, 896)
step: launch 0(%0, %1, %134; 3, 896, 0, 1024)
step: launch 1(%134, %135, %136; 3, 896, 0, 1024)
step: launch 2(%134, %2, %135, %136, %40; 3, 896, 0, 1024)
note: kernel fused_amax_eq_exp_sum_NAME: 1 result in the memory of operands that are not read again (launches: 1)
note: attention: 3 kernels for 32 blocks of 131072 scores each
""",
    )


def in_blocks(name: str, block_bytes: int) -> TargetFacts:
    facts = target_facts(name)
    assert facts.attention is not None
    return replace(facts, attention=replace(facts.attention, block_bytes=block_bytes))


def attend(query: Tensor, key: Tensor, value: Tensor, *masks: Tensor, **how: Any) -> Tensor:
    """Attention whose layout no one sees."""
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=masks[0] if masks else None, enable_gqa=True, **how
    )
    return found.transpose(1, 2).flatten(2) + 0


def heads(queries: int, keys: int, groups: int = 6) -> list[Tensor]:
    """Queries, keys and values of two sequences of six heads, as projections give them."""
    shapes = ((queries, 6), (keys, groups), (keys, groups))
    return [torch.randn(2, rows, count, 16).transpose(1, 2) for rows, count in shapes]


Form = tuple[Callable[[], list[Tensor]], dict[str, Any], int]
"""Operands, options, and the bytes of a block."""
FORMS: dict[str, Form] = {
    "heads": (lambda: heads(45, 37), {}, 4 * 2 * 45 * 37),
    "queries": (lambda: heads(48, 37), {}, 4 * 16 * 37),
    "heads that share keys": (lambda: heads(48, 37, groups=2), {}, 4 * 16 * 37),
    "causal": (lambda: heads(512, 300), {"is_causal": True}, 1 << 19),
    "causal, more keys": (lambda: heads(256, 300), {"is_causal": True}, 1 << 18),
    "masked": (
        lambda: [*heads(48, 40), torch.where(torch.rand(2, 1, 48, 40) < 0.7, 0.0, -torch.inf)],
        {},
        4 * 16 * 40,
    ),
    "one scale": (lambda: heads(48, 37), {"scale": 1.0}, 4 * 16 * 37),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_blocks_give_what_the_framework_does(target: str, form: str) -> None:
    torch.manual_seed(0)
    make, how, block_bytes = FORMS[form]
    given, counts = make(), Counts()
    with torch.no_grad():
        layer = compiled_for(attend, in_blocks(target, block_bytes), counts)
        ours, eager = layer(*given, **how), attend(*given, **how)
        exact = attend(*(tensor.double() for tensor in given), **how)
    assert not counts.externs
    assert counts.launches >= 3 * 4
    errors = [(found.double() - exact).abs().max().item() for found in (ours, eager)]
    assert errors[0] <= max(4 * errors[1], 2**-22)


GRADIENTS: dict[str, tuple[Callable[[], list[Tensor]], bool, int]] = {
    "heads that share keys": (lambda: heads(40, 37, 2), False, 12),
    "keys": (lambda: heads(40, 36, 2), False, 48),
    "causal, fewer queries than keys": (lambda: heads(128, 384), True, 36),
}
"""Operands, whether attention is causal, and the number of blocks."""


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        *(pytest.param(*run.values, torch.float32, marks=run.marks) for run in TARGETS),
        pytest.param(PAIRS, torch.bfloat16, marks=unless_it_runs(PAIRS)),
    ],
)
@pytest.mark.parametrize("form", GRADIENTS)
def test_gradients_are_sums_over_blocks(target: str, dtype: torch.dtype, form: str) -> None:
    torch.manual_seed(0)
    make, causal, blocks = GRADIENTS[form]
    given = [tensor.to(dtype) for tensor in make()]
    scores = 12 * given[0].shape[2] * given[1].shape[2]
    counts, leaves = Counts(), [tensor.detach().requires_grad_() for tensor in given]
    facts = in_blocks(target, scores * dtype.itemsize // blocks)
    layer = compiled_for(attend, facts, counts)
    result = layer(*leaves, is_causal=causal)
    forward = counts.launches
    grad = torch.randn_like(result)
    ours = torch.autograd.grad(result, leaves, grad)
    assert not counts.externs
    assert counts.launches - forward >= 3 * blocks
    eager = torch.autograd.grad(attend(*leaves, is_causal=causal), leaves, grad)
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    exact = torch.autograd.grad(attend(*wide, is_causal=causal), wide, grad.double())
    least = 2**-8 if dtype is torch.bfloat16 else 2**-22
    for found, other, reference in zip(ours, eager, exact, strict=True):
        errors = [(each.double() - reference).abs().max().item() for each in (found, other)]
        assert errors[0] <= max(4 * errors[1], least)


def optimized(text: str, block_bytes: int = 1 << 23) -> OptimizeResult:
    return optimize(parse_graph(text), in_blocks(TARGET, block_bytes))


def test_memory_holds_one_block() -> None:
    """All scores are 16 MiB; the arena also has two numbers for each query."""
    plan = optimized(PLAIN).program.plan
    assert plan.arena_bytes.constant <= (1 << 23) + (1 << 16)
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    assert len(launches) == 6
    assert len({step.kernel for step in launches}) == 3
    sizes = [b.size_elems.constant for b in plan.buffers if b.kind is BufferKind.TEMPORARY]
    assert max(sizes) == 2 * 1024 * 1024


def test_the_report_shows_the_steps_of_one_block() -> None:
    report = dict(optimized(PLAIN).stages)["report"]
    assert "attention: 3 kernels for 2 blocks of 2097152 scores each" in report
    assert [line.partition(":")[0] for line in report.splitlines() if line.startswith("step ")] == [
        "step 0",
        "step 1",
        "step 2",
    ]


def test_a_prime_number_of_queries_is_not_divided() -> None:
    report = dict(optimized(PLAIN.replace("1024, 64]", "1021, 64]")).stages)["report"]
    assert "for 2 blocks of 2084882 scores each" in report
    report = dict(optimized(PLAIN.replace("1024, 64]", "1021, 64]"), 1 << 20).stages)["report"]
    assert "for 4 blocks of 1042441 scores each" in report


def test_scores_that_fit_are_not_divided() -> None:
    plan = optimized(PLAIN, 1 << 24).program.plan
    assert len(plan.steps) == 3


ALSO_READ = """\
%4: f32[1, 4, 1, 1024, 64] = reshape(%0; shape=[{1}, {4}, {1}, {1024}, {64}]) from [1]
%5: f32[1, 4, 1, 1024, 1024, 64] = broadcast_in_dim(%4; dims=[0, 1, 2, 3, 5], shape=[{1}, {4}, {1}, {1024}, {1024}, {64}]) from [1]
%6: f32[1, 4, 1, 1024, 1024, 64] = broadcast_in_dim(%1; dims=[0, 1, 4, 5], shape=[{1}, {4}, {1}, {1024}, {1024}, {64}]) from [1]
%7: f32[1, 4, 1, 1024, 1024, 64] = mul(%5, %6) from [1]
%8: f32[1, 4, 1, 1024, 1024] = sum(%7; dims=[5]) from [1]
%9: f32[1, 4, 1, 1024] = amax(%8; dims=[4]) from [1]
return %9: f32[1, 4, 1, 1024]@[4096, 1024, 1024, 1], """


@pytest.mark.parametrize("is_read", [False, True])
def test_scores_that_a_model_reads_itself_are_computed_whole(is_read: bool) -> None:
    """Equal products become one value, and the model's own reader sees no mask."""
    text = CAUSAL.replace("return ", ALSO_READ) if is_read else CAUSAL
    found = optimized(text)
    axes = [axis for k in found.program.kernels for axis in (*k.outer, *k.reduction)]
    assert all(axis.extent.is_constant for axis in axes) is is_read
    products = [k for k in found.program.kernels if find_processor_product(k) is not None]
    assert len(products) == 2
