"""Attention that kernels compute on some processors: of one query for each head, or of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.custom_operators.attention import ATTENTION_SAVING
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import AttentionFacts, TargetFacts, all_targets, target_facts
from optimizer_svc.passes.choose_attention import choose_attention
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets, unless_it_runs
from tests.support.contraction_programs import run
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.optimizer_passes import before_and_after
from tests.support.traced_graphs import capturing

B, H, KEYS, WIDTH = 2, 6, 37, 16
QUERIES = 29
ONE_QUERY = """\
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: bf16[1, 1, 1, 5]@[5, 5, 5, 1] = input "mask"
%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2, %3; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
%5: bf16[1, 4, 1, 8] = neg(%4) from [1]
return %5: bf16[1, 4, 1, 8]@[32, 8, 8, 1]
"""
TYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}


SEVERAL_QUERIES = """\
graph prims 1
%0: f32[2, 4, 16, 8]@[512, 128, 8, 1] = input "q"
%1: f32[2, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: f32[2, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: f32[2, 4, 16, 8]@[512, 8, 32, 1] = extern(%0, %1, %2; is_causal=true, is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
return %3: f32[2, 4, 16, 8]@[512, 8, 32, 1]
"""


@pytest.mark.golden
def test_several_queries_have_the_heads_of_a_query_beside_each_other() -> None:
    assert_golden(
        before_and_after("compute-attention", SEVERAL_QUERIES, "cpu:x86-64-v4-amd"),
        """\
-- before compute-attention: graph
graph prims 1
%0: f32[2, 4, 16, 8]@[512, 128, 8, 1] = input "q"
%1: f32[2, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: f32[2, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: f32[2, 4, 16, 8]@[512, 8, 32, 1] = extern(%0, %1, %2; is_causal=true, is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
return %3: f32[2, 4, 16, 8]@[512, 8, 32, 1]
-- after: graph
graph prims 1
%0: f32[2, 4, 16, 8]@[512, 128, 8, 1] = input "q"
%1: f32[2, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: f32[2, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%7: f32[2, 2, 2, 16, 8] = reshape(%0; shape=[{2}, {2}, {2}, {16}, {8}]) from [0]
%8: f32[2, 2, 2, 16, 5, 8] = broadcast_in_dim(%7; dims=[0, 1, 2, 3, 5], shape=[{2}, {2}, {2}, {16}, {5}, {8}]) from [0]
%9: f32[2, 2, 2, 16, 5, 8] = broadcast_in_dim(%1; dims=[0, 1, 4, 5], shape=[{2}, {2}, {2}, {16}, {5}, {8}]) from [0]
%10: f32[2, 2, 2, 16, 5, 8] = mul(%8, %9) from [0]
%4: f32[2, 2, 2, 16, 5] = sum(%10; dims=[5]) from [0]
%12: f32[2, 2, 2, 16, 5] = full(; dtype=f32, shape=[{2}, {2}, {2}, {16}, {5}], value=0.5) from [0]
%13: f32[2, 2, 2, 16, 5] = mul(%4, %12) from [0]
%14: i64[16] = iota(; dtype=i64, length={16}) from [0]
%15: i64[16, 5] = broadcast_in_dim(%14; dims=[0], shape=[{16}, {5}]) from [0]
%16: i64[5] = iota(; dtype=i64, length={5}) from [0]
%17: i64[16, 5] = broadcast_in_dim(%16; dims=[1], shape=[{16}, {5}]) from [0]
%18: bool[16, 5] = ge(%15, %17) from [0]
%19: bool[2, 2, 2, 16, 5] = broadcast_in_dim(%18; dims=[3, 4], shape=[{2}, {2}, {2}, {16}, {5}]) from [0]
%20: f32[2, 2, 2, 16, 5] = full(; dtype=f32, shape=[{2}, {2}, {2}, {16}, {5}], value=-inf) from [0]
%5: f32[2, 2, 2, 16, 5] = where(%19, %13, %20) from [0]
%22: f32[2, 2, 2, 16] = amax(%5; dims=[4]) from [0]
%23: f32[2, 2, 2, 16] = full(; dtype=f32, shape=[{2}, {2}, {2}, {16}], value=-inf) from [0]
%24: bool[2, 2, 2, 16] = eq(%22, %23) from [0]
%25: f32[2, 2, 2, 16] = full(; dtype=f32, shape=[{2}, {2}, {2}, {16}], value=0.0) from [0]
%26: f32[2, 2, 2, 16] = where(%24, %25, %22) from [0]
%27: f32[2, 2, 2, 16, 5] = broadcast_in_dim(%26; dims=[0, 1, 2, 3], shape=[{2}, {2}, {2}, {16}, {5}]) from [0]
%28: f32[2, 2, 2, 16, 5] = sub(%5, %27) from [0]
%6: f32[2, 2, 2, 16, 5] = exp(%28) from [0]
%30: f32[2, 2, 2, 16] = sum(%6; dims=[4]) from [0]
%31: f32[2, 2, 2, 16] = full(; dtype=f32, shape=[{2}, {2}, {2}, {16}], value=1.0) from [0]
%32: f32[2, 2, 2, 16] = where(%24, %31, %30) from [0]
%33: f32[2, 16, 2, 2, 5] = permute(%6; dims=[0, 3, 1, 2, 4]) from [0]
%34: f32[2, 16, 2, 2] = permute(%32; dims=[0, 3, 1, 2]) from [0]
%35: f32[2, 16, 2, 2, 5, 8] = broadcast_in_dim(%33; dims=[0, 1, 2, 3, 4], shape=[{2}, {16}, {2}, {2}, {5}, {8}]) from [0]
%36: f32[2, 16, 2, 2, 5, 8] = broadcast_in_dim(%2; dims=[0, 2, 4, 5], shape=[{2}, {16}, {2}, {2}, {5}, {8}]) from [0]
%37: f32[2, 16, 2, 2, 5, 8] = mul(%35, %36) from [0]
%38: f32[2, 16, 2, 2, 8] = sum(%37; dims=[4]) from [0]
%39: f32[2, 16, 2, 2, 8] = broadcast_in_dim(%34; dims=[0, 1, 2, 3], shape=[{2}, {16}, {2}, {2}, {8}]) from [0]
%40: f32[2, 16, 2, 2, 8] = div(%38, %39) from [0]
%41: f32[2, 16, 4, 8] = reshape(%40; shape=[{2}, {16}, {4}, {8}]) from [0]
%42: f32[2, 16, 4, 8] = convert(%41; dtype=f32) from [0]
%3: f32[2, 4, 16, 8] = permute(%42; dims=[0, 2, 1, 3]) from [0]
return %3: f32[2, 4, 16, 8]@[512, 8, 32, 1]
""",
    )


PAGES = """\
graph prims 1
%0: bf16[2, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[99, 2, 16, 8]@[256, 128, 8, 1] = input "keys"
%2: bf16[99, 256]@[256, 1] = input "values"
%3: i64[2, 10]@[10, 1] = input "table"
%4: bf16[2, 1, 1, 160]@[160, 160, 160, 1] = input "mask"
%5: i64[20] = reshape(%3; shape=[{20}]) from [0]
%6: bf16[20, 2, 16, 8] = take(%1, %5; dim=0) from [1]
%7: bf16[2, 10, 2, 16, 8] = reshape(%6; shape=[{2}, {10}, {2}, {16}, {8}]) from [2]
%8: bf16[2, 2, 10, 16, 8] = permute(%7; dims=[0, 2, 1, 3, 4]) from [3]
%9: bf16[2, 2, 160, 8] = reshape(%8; shape=[{2}, {2}, {160}, {8}]) from [4]
%10: bf16[2, 10, 256] = take(%2, %3; dim=0) from [5]
%11: bf16[2, 160, 2, 8] = reshape(%10; shape=[{2}, {160}, {2}, {8}]) from [6]
%12: bf16[2, 2, 160, 8] = permute(%11; dims=[0, 2, 1, 3]) from [7]
%13: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %9, %12, %4; is_contraction=true, node=8, op="aten.scaled_dot_product_attention.default", scale=0.5) from [8]
return %13: bf16[2, 4, 1, 8]@[32, 8, 32, 1]
"""


@pytest.mark.golden
def test_a_template_reads_pages_of_any_layout_as_one_that_has_heads_first() -> None:
    assert_golden(
        before_and_after("compute-attention", PAGES, "cuda:sm_90a").partition("-- after")[2],
        """\
: graph
graph prims 1
%0: bf16[2, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[99, 2, 16, 8]@[256, 128, 8, 1] = input "keys"
%2: bf16[99, 256]@[256, 1] = input "values"
%3: i64[2, 10]@[10, 1] = input "table"
%4: bf16[2, 1, 1, 160]@[160, 160, 160, 1] = input "mask"
%5: i64[20] = reshape(%3; shape=[{20}]) from [0]
%6: bf16[20, 2, 16, 8] = take(%1, %5; dim=0) from [1]
%7: bf16[2, 10, 2, 16, 8] = reshape(%6; shape=[{2}, {10}, {2}, {16}, {8}]) from [2]
%8: bf16[2, 2, 10, 16, 8] = permute(%7; dims=[0, 2, 1, 3, 4]) from [3]
%9: bf16[2, 2, 160, 8] = reshape(%8; shape=[{2}, {2}, {160}, {8}]) from [4]
%10: bf16[2, 10, 256] = take(%2, %3; dim=0) from [5]
%11: bf16[2, 160, 2, 8] = reshape(%10; shape=[{2}, {160}, {2}, {8}]) from [6]
%12: bf16[2, 2, 160, 8] = permute(%11; dims=[0, 2, 1, 3]) from [7]
%14: bf16[99, 16, 2, 8] = reshape(%2; shape=[{99}, {16}, {2}, {8}]) from [8]
%15: bf16[99, 2, 16, 8] = permute(%1; dims=[0, 1, 2, 3]) from [8]
%16: bf16[99, 2, 16, 8] = permute(%14; dims=[0, 2, 1, 3]) from [8]
%17: i64[2, 10] = reshape(%5; shape=[{2}, {10}]) from [8]
%18: f32[2, 2, 1, 2, 8]@[32, 16, 16, 8, 1], %19: f32[2, 2, 1, 2]@[4, 2, 2, 1], %20: f32[2, 2, 1, 2]@[4, 2, 2, 1] = extern(%0, %15, %16, %17, %3, %4; is_contraction=false, length={160}, node=8, op="template.paged_attention_parts", scale=0.5) from [8]
%21: f32[2, 2, 1, 2, 8] = broadcast_in_dim(%19; dims=[0, 1, 2, 3], shape=[{2}, {2}, {1}, {2}, {8}]) from [8]
%22: f32[2, 2, 1, 2, 8] = broadcast_in_dim(%20; dims=[0, 1, 2, 3], shape=[{2}, {2}, {1}, {2}, {8}]) from [8]
%23: f32[2, 2, 2, 8] = amax(%21; dims=[2]) from [8]
%24: f32[2, 2, 2, 8] = full(; dtype=f32, shape=[{2}, {2}, {2}, {8}], value=-inf) from [8]
%25: bool[2, 2, 2, 8] = eq(%23, %24) from [8]
%26: f32[2, 2, 2, 8] = full(; dtype=f32, shape=[{2}, {2}, {2}, {8}], value=0.0) from [8]
%27: f32[2, 2, 2, 8] = where(%25, %26, %23) from [8]
%28: f32[2, 2, 1, 2, 8] = broadcast_in_dim(%27; dims=[0, 1, 3, 4], shape=[{2}, {2}, {1}, {2}, {8}]) from [8]
%29: f32[2, 2, 1, 2, 8] = sub(%21, %28) from [8]
%30: f32[2, 2, 1, 2, 8] = exp(%29) from [8]
%31: f32[2, 2, 1, 2, 8] = mul(%22, %30) from [8]
%32: f32[2, 2, 2, 8] = sum(%31; dims=[2]) from [8]
%33: f32[2, 2, 2, 8] = full(; dtype=f32, shape=[{2}, {2}, {2}, {8}], value=1.0) from [8]
%34: f32[2, 2, 2, 8] = where(%25, %33, %32) from [8]
%35: f32[2, 2, 1, 2, 8] = mul(%18, %30) from [8]
%36: f32[2, 2, 2, 8] = sum(%35; dims=[2]) from [8]
%37: f32[2, 2, 2, 8] = div(%36, %34) from [8]
%38: f32[2, 4, 1, 8] = reshape(%37; shape=[{2}, {4}, {1}, {8}]) from [8]
%13: bf16[2, 4, 1, 8] = convert(%38; dtype=bf16) from [8]
return %13: bf16[2, 4, 1, 8]@[32, 8, 32, 1]
""",
    )


@pytest.mark.golden
def test_attention_becomes_scores_their_softmax_and_a_sum_of_values() -> None:
    assert_golden(
        before_and_after("compute-attention", ONE_QUERY, "cpu:x86-64-v4-amd"),
        """\
-- before compute-attention: graph
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: bf16[1, 1, 1, 5]@[5, 5, 5, 1] = input "mask"
%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2, %3; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
%5: bf16[1, 4, 1, 8] = neg(%4) from [1]
return %5: bf16[1, 4, 1, 8]@[32, 8, 8, 1]
-- after: graph
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: bf16[1, 1, 1, 5]@[5, 5, 5, 1] = input "mask"
%7: f32[1, 4, 1, 8] = convert(%0; dtype=f32) from [0]
%8: f32[1, 2, 2, 8] = reshape(%7; shape=[{1}, {2}, {2}, {8}]) from [0]
%9: f32[1, 2, 5, 8] = convert(%1; dtype=f32) from [0]
%10: f32[1, 2, 2, 5, 8] = broadcast_in_dim(%8; dims=[0, 1, 2, 4], shape=[{1}, {2}, {2}, {5}, {8}]) from [0]
%11: f32[1, 2, 2, 5, 8] = broadcast_in_dim(%9; dims=[0, 1, 3, 4], shape=[{1}, {2}, {2}, {5}, {8}]) from [0]
%12: f32[1, 2, 2, 5, 8] = mul(%10, %11) from [0]
%13: f32[1, 2, 2, 5] = sum(%12; dims=[4]) from [0]
%14: f32[1, 2, 2, 5] = full(; dtype=f32, shape=[{1}, {2}, {2}, {5}], value=0.5) from [0]
%15: f32[1, 2, 2, 5] = mul(%13, %14) from [0]
%16: f32[1, 1, 1, 5] = convert(%3; dtype=f32) from [0]
%17: f32[1, 1, 1, 5] = reshape(%16; shape=[{1}, {1}, {1}, {5}]) from [0]
%18: f32[1, 2, 2, 5] = broadcast_in_dim(%17; dims=[0, 1, 2, 3], shape=[{1}, {2}, {2}, {5}]) from [0]
%19: f32[1, 2, 2, 5] = add(%15, %18) from [0]
%20: f32[1, 2, 2, 5] = full(; dtype=f32, shape=[{1}, {2}, {2}, {5}], value=-inf) from [0]
%21: bool[1, 2, 2, 5] = ne(%18, %20) from [0]
%6: f32[1, 2, 2, 5] = where(%21, %19, %20) from [0]
%22: f32[1, 2, 2] = amax(%6; dims=[3]) from [0]
%23: f32[1, 2, 2] = full(; dtype=f32, shape=[{1}, {2}, {2}], value=-inf) from [0]
%24: bool[1, 2, 2] = eq(%22, %23) from [0]
%25: f32[1, 2, 2] = full(; dtype=f32, shape=[{1}, {2}, {2}], value=0.0) from [0]
%26: f32[1, 2, 2] = where(%24, %25, %22) from [0]
%27: f32[1, 2, 2, 5] = broadcast_in_dim(%26; dims=[0, 1, 2], shape=[{1}, {2}, {2}, {5}]) from [0]
%28: f32[1, 2, 2, 5] = sub(%6, %27) from [0]
%29: f32[1, 2, 2, 5] = exp(%28) from [0]
%30: f32[1, 2, 2] = sum(%29; dims=[3]) from [0]
%31: f32[1, 2, 2] = full(; dtype=f32, shape=[{1}, {2}, {2}], value=1.0) from [0]
%32: f32[1, 2, 2] = where(%24, %31, %30) from [0]
%33: f32[1, 2, 5, 8] = convert(%2; dtype=f32) from [0]
%34: f32[1, 2, 2, 5, 8] = broadcast_in_dim(%29; dims=[0, 1, 2, 3], shape=[{1}, {2}, {2}, {5}, {8}]) from [0]
%35: f32[1, 2, 2, 5, 8] = broadcast_in_dim(%33; dims=[0, 1, 3, 4], shape=[{1}, {2}, {2}, {5}, {8}]) from [0]
%36: f32[1, 2, 2, 5, 8] = mul(%34, %35) from [0]
%37: f32[1, 2, 2, 5, 8] = full(; dtype=f32, shape=[{1}, {2}, {2}, {5}, {8}], value=0.0) from [0]
%38: bool[1, 2, 2, 5, 8] = ne(%34, %37) from [0]
%39: f32[1, 2, 2, 5, 8] = where(%38, %36, %37) from [0]
%40: f32[1, 2, 2, 8] = sum(%39; dims=[3]) from [0]
%41: f32[1, 2, 2, 8] = broadcast_in_dim(%32; dims=[0, 1, 2], shape=[{1}, {2}, {2}, {8}]) from [0]
%42: f32[1, 2, 2, 8] = div(%40, %41) from [0]
%43: f32[1, 4, 1, 8] = reshape(%42; shape=[{1}, {4}, {1}, {8}]) from [0]
%4: bf16[1, 4, 1, 8] = convert(%43; dtype=bf16) from [0]
%5: bf16[1, 4, 1, 8] = neg(%4) from [1]
return %5: bf16[1, 4, 1, 8]@[32, 8, 8, 1]
""",
    )


FACTS = AttentionFacts(("bf16", "f16", "f32"), ("bf16", "f16", "f32"), 16, 1 << 20)


def attending(name: str) -> TargetFacts:
    return replace(target_facts(name), attention=FACTS)


def heads(
    dtype: torch.dtype, *, queries: int = 1, groups: int = 2, value_width: int = WIDTH
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (
        (B, H, queries, WIDTH),
        (B, groups, KEYS, WIDTH),
        (B, groups, KEYS, value_width),
    )
    query, key, value = (torch.randn(shape).to(dtype) for shape in shapes)
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any) -> Tensor:
    """Attention whose layout no one sees."""
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True, **how
    )
    return found.transpose(1, 2).flatten(2) + 0


def masks() -> dict[str, Tensor | None]:
    seen = torch.arange(KEYS) < 20
    added = torch.randn(B, 1, 1, KEYS)
    return {
        "none": None,
        "bool": seen.expand(B, 1, 1, KEYS),
        "of keys": seen[None],
        "added": added,
        "of heads": torch.randn(1, H, 1, KEYS),
        "of one batch": torch.where(seen, 0.0, -torch.inf)[None, None, None],
        "with gaps": torch.rand(B, H, 1, KEYS) < 0.6,
    }


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", masks())
def test_one_query_is_attended_as_exactly_as_by_the_framework(
    target: str, dtype: torch.dtype, name: str
) -> None:
    torch.manual_seed(0)
    mask = masks()[name]
    mask = mask if mask is None or mask.dtype is torch.bool else mask.to(dtype)
    args = heads(dtype)
    counts = Counts()
    ours, _ = run(attending(target), counts, attend, *args, mask)
    assert not counts.externs
    wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
    exact = attend(*(a.double() for a in args), wide)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, attend(*args, mask))]
    assert errors[0] <= max(4 * errors[1], TYPES[dtype])


CACHE_TARGETS = [
    *run_targets(),
    pytest.param(PAIRS := "cpu:x86-64-v4-bf16-amd", marks=unless_it_runs(PAIRS)),
]


@pytest.mark.parametrize("target", CACHE_TARGETS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("groups", [2, H])
def test_what_a_mask_hides_is_not_read(target: str, dtype: torch.dtype, groups: int) -> None:
    """A cache has room for more keys: what is there, also NaN, changes nothing."""
    torch.manual_seed(0)
    query, cache = torch.randn(B, H, 1, 64).to(dtype), torch.randn(2, B, groups, KEYS, 64)
    key, value = cache.to(dtype)
    seen = torch.arange(KEYS) < torch.tensor([[5], [31]])
    mask, counts = seen[:, None, None], Counts()
    fill = torch.where(seen, 0.0, torch.nan).to(dtype)[:, None, :, None]
    ours, _ = run(attending(target), counts, attend, query, key + fill, value + fill, mask)
    assert not counts.externs
    exact = attend(query.double(), key.double(), value.double(), mask)
    eager = attend(query, key, value, mask)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= max(4 * errors[1], TYPES[dtype])


@pytest.mark.parametrize("target", run_targets())
def test_scores_that_are_no_numbers_are_those_of_the_framework(target: str) -> None:
    """Only the mask hides keys: NaN that a query sees is a result."""
    query, key, value = heads(torch.float32)
    key[1, 0, 3], mask = torch.nan, masks()["bool"]
    assert mask is not None
    ours, _ = run(attending(target), Counts(), attend, query, key, value, mask)
    torch.testing.assert_close(ours, attend(query, key, value, mask), equal_nan=True)
    assert ours.isnan().any()


def masks_of_queries() -> dict[str, Tensor | None]:
    """Masks of attention of `QUERIES` queries."""
    before = torch.arange(KEYS)[None] <= torch.arange(QUERIES)[:, None]
    return {
        "none": None,
        "bool": before[None, None],
        "of keys": (torch.arange(KEYS) < 20).expand(B, 1, 1, KEYS),
        "added": torch.randn(B, H, QUERIES, KEYS),
        "of one batch": torch.where(before, 0.0, -torch.inf),
    }


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", masks_of_queries())
def test_several_queries_are_attended_as_exactly_as_by_the_framework(
    target: str, dtype: torch.dtype, name: str
) -> None:
    torch.manual_seed(0)
    mask = masks_of_queries()[name]
    mask = mask if mask is None or mask.dtype is torch.bool else mask.to(dtype)
    args = heads(dtype, queries=QUERIES, value_width=24)
    counts = Counts()
    ours, _ = run(attending(target), counts, attend, *args, mask)
    assert not counts.externs
    wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
    exact = attend(*(a.double() for a in args), wide)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, attend(*args, mask))]
    assert errors[0] <= max(4 * errors[1], TYPES[dtype])


@pytest.mark.parametrize("queries", [1, 16, QUERIES])
@pytest.mark.parametrize("target", run_targets())
def test_a_causal_mask_hides_later_keys(target: str, queries: int) -> None:
    args, counts = heads(torch.float32, queries=queries), Counts()
    ours, graph = run(
        attending(target), counts, lambda *given: attend(*given, None, is_causal=True), *args
    )
    assert not counts.externs
    assert [node.attr("is_causal") for node in graph.nodes if node.op == "extern"] == [True]
    exact = attend(*(a.double() for a in args), None, is_causal=True)
    torch.testing.assert_close(ours, exact.float())


def test_products_of_several_queries_are_in_tiles() -> None:
    """Also of 16 bits: a panel and the rows of a tile are converted where they are read."""
    args = heads(torch.bfloat16, queries=QUERIES)
    _, graph = run(attending("cpu:x86-64-v3"), Counts(), attend, *args, None)
    kernels = optimize(graph, attending("cpu:x86-64-v4")).program.kernels
    rows = [None if found is None else found.rows for found in map(find_processor_product, kernels)]
    extents = [None if axis is None else axis.extent.constant for axis in rows]
    assert extents == [3 * QUERIES, None, QUERIES]  # three heads share keys and values


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_heads_may_share_keys_and_values_of_another_width(target: str, groups: int) -> None:
    torch.manual_seed(groups)
    args = heads(torch.float32, groups=groups, value_width=24)
    counts = Counts()
    ours, _ = run(attending(target), counts, attend, *args, None)
    assert not counts.externs
    torch.testing.assert_close(ours, attend(*args, None))


@pytest.mark.parametrize("target", run_targets())
def test_the_number_of_keys_may_vary(target: str) -> None:
    """One program serves a cache that grows."""
    counts = Counts()

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        program = compile_here(captured, counts, attending(target))
        return lambda *given: program(list(given))

    def function(query: Tensor, cache: Tensor) -> Tensor:
        return attend(query, cache[0], cache[1], None)

    torch._dynamo.reset()
    fast = torch.compile(function, backend=capturing(compiled))
    with torch.no_grad():
        for keys in (5, 6, 70):
            query, cache = torch.randn(B, H, 1, WIDTH), torch.randn(2, B, 2, keys, WIDTH)
            torch._dynamo.maybe_mark_dynamic(cache, 3)
            torch.testing.assert_close(fast(query, cache), function(query, cache))
    assert (counts.graphs, counts.externs) == (1, [])


@pytest.mark.parametrize("target", run_targets())
def test_a_query_that_sees_no_key_has_zeros(target: str) -> None:
    args, counts = heads(torch.float32), Counts()
    mask = torch.ones(B, 1, 1, KEYS, dtype=torch.bool)
    mask[1] = False
    ours, _ = run(attending(target), counts, attend, *args, mask)
    assert not counts.externs
    assert not ours[1].any()
    torch.testing.assert_close(ours, attend(*args, mask))


@pytest.mark.parametrize("target", run_targets())
def test_a_stated_scale_multiplies_the_scores(target: str) -> None:
    args, counts = heads(torch.float32), Counts()
    ours, graph = run(
        attending(target), counts, lambda *given: attend(*given, None, scale=0.3), *args
    )
    assert not counts.externs
    assert [node.attr("scale") for node in graph.nodes if node.op == "extern"] == [0.3]
    torch.testing.assert_close(ours, attend(*args, None, scale=0.3))


@pytest.mark.parametrize("target", run_targets())
def test_a_returned_result_has_the_layout_of_the_framework_s(target: str) -> None:
    """Its graph has the framework's own operator for processors."""
    args, counts = heads(torch.float32, groups=H), Counts()

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value)

    ours, graph = run(attending(target), counts, function, *args)
    assert "flash_attention_for_cpu" in str([node.attr("op") for node in graph.nodes])
    assert not counts.externs
    eager = function(*args)
    assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("target", run_targets())
def test_log_sum_exps_are_those_that_the_framework_saves_for_gradients(target: str) -> None:
    """Also 0 for a query that sees no key: the framework's gradients may start from them."""
    args, counts = heads(torch.float32, queries=QUERIES, groups=H), Counts()
    mask = torch.zeros(B, 1, QUERIES, KEYS).masked_fill(torch.rand(QUERIES, KEYS) < 0.4, -torch.inf)
    mask[1, :, 3] = -torch.inf

    def function(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        found, sums = ATTENTION_SAVING(query, key, value, mask, False, None, False, False)
        return torch.cat([found, sums.unsqueeze(-1)], -1)

    ours, _ = run(attending(target), counts, function, *args, mask)
    assert not counts.externs
    torch.testing.assert_close(ours, function(*args, mask))


def test_one_query_with_its_log_sum_exp_stays_with_the_framework() -> None:
    graph = parse_graph(
        ONE_QUERY.replace("aten.scaled_dot_product_attention", "kernelfarm.attention_saving")
        .replace(
            "%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] =",
            "%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1], %6: f32[1, 4, 1]@[4, 1, 1] =",
        )
        .replace("return ", "return %6: f32[1, 4, 1]@[4, 1, 1], ")
    )
    found = choose_attention(graph, attending("cpu:x86-64-v4"))
    assert found.notes == (
        "attention: 1 by the framework: whose log-sum-exps are read, of one query",
    )


REFUSED: dict[str, tuple[Callable[[], tuple[Tensor, ...]], dict[str, Any]]] = {
    "of 2 to 15 queries": (lambda: heads(torch.float32, queries=15), {}),
    "with blocks of more than 1048576 bytes of scores": (
        lambda: heads(torch.float32, queries=7103),
        {},
    ),
    "it has dropout, or a scale that varies": (lambda: heads(torch.float32), {"scale": 1e31}),
    "of f64, for which kernels were not timed": (lambda: heads(torch.float64), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_attention_stays_with_the_framework(reason: str) -> None:
    make, how = REFUSED[reason]
    (target, *_) = (name for name in all_targets() if name.startswith("cpu:x86"))
    graphs: list[Graph] = []

    def compiled(captured: CapturedGraph, gm: fx.GraphModule) -> Callable[..., object]:
        graphs.append(decompose_to_prims(captured.graph).graph)
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(
            lambda *given: attend(*given, None, **how), backend=capturing(compiled), dynamic=False
        )(*make())
    found = choose_attention(graphs[0], attending(target))
    assert not found.results
    assert reason in "\n".join(found.notes)


@pytest.mark.parametrize("queries", [1, 16])
def test_attention_to_no_keys_stays_with_the_framework(queries: int) -> None:
    text = ONE_QUERY.replace("bf16[1, 4, 1, 8]", f"bf16[1, 4, {queries}, 8]")
    text = text.replace("[1, 2, 5, 8]", "[1, 2, 0, 8]").replace("[1, 1, 1, 5]", "[1, 1, 1, 0]")
    found = choose_attention(parse_graph(text), attending("cpu:x86-64-v4"))
    assert found.notes == ("attention: 1 by the framework: without scores or results",)


def test_targets_that_were_not_measured_leave_attention_to_the_framework() -> None:
    _, graph = run(attending("cpu:x86-64-v3"), Counts(), attend, *heads(torch.bfloat16), None)
    for name, facts in all_targets().items():
        is_measured = name.endswith("-amd")
        assert bool(choose_attention(graph, facts).results) is is_measured
    report = dict(optimize(graph, target_facts("cpu:x86-64-v4-amd")).stages)["report"]
    assert "attention: 1 of one query by kernels" in report


KEYS_IN_PARTS = """\
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 512, 8]@[8192, 4096, 8, 1] = input "k"
%2: bf16[1, 1, 1, 512]@[512, 512, 512, 1] = input "mask"
%3: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %1, %2; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
return %3: bf16[1, 4, 1, 8]@[32, 8, 8, 1]
"""


@pytest.mark.golden
def test_prims_join_the_parts_of_a_template() -> None:
    assert_golden(
        before_and_after("compute-attention", KEYS_IN_PARTS, "cuda:sm_90a").partition("-- after")[
            2
        ],
        """\
: graph
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 512, 8]@[8192, 4096, 8, 1] = input "k"
%2: bf16[1, 1, 1, 512]@[512, 512, 512, 1] = input "mask"
%4: f32[1, 2, 4, 2, 8]@[128, 64, 16, 8, 1], %5: f32[1, 2, 4, 2]@[16, 8, 2, 1], %6: f32[1, 2, 4, 2]@[16, 8, 2, 1] = extern(%0, %1, %1, %2; is_contraction=false, node=0, op="template.attention_parts", scale=0.5) from [0]
%7: f32[1, 2, 4, 2, 8] = broadcast_in_dim(%5; dims=[0, 1, 2, 3], shape=[{1}, {2}, {4}, {2}, {8}]) from [0]
%8: f32[1, 2, 4, 2, 8] = broadcast_in_dim(%6; dims=[0, 1, 2, 3], shape=[{1}, {2}, {4}, {2}, {8}]) from [0]
%9: f32[1, 2, 2, 8] = amax(%7; dims=[2]) from [0]
%10: f32[1, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {2}, {2}, {8}], value=-inf) from [0]
%11: bool[1, 2, 2, 8] = eq(%9, %10) from [0]
%12: f32[1, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {2}, {2}, {8}], value=0.0) from [0]
%13: f32[1, 2, 2, 8] = where(%11, %12, %9) from [0]
%14: f32[1, 2, 4, 2, 8] = broadcast_in_dim(%13; dims=[0, 1, 3, 4], shape=[{1}, {2}, {4}, {2}, {8}]) from [0]
%15: f32[1, 2, 4, 2, 8] = sub(%7, %14) from [0]
%16: f32[1, 2, 4, 2, 8] = exp(%15) from [0]
%17: f32[1, 2, 4, 2, 8] = mul(%8, %16) from [0]
%18: f32[1, 2, 2, 8] = sum(%17; dims=[2]) from [0]
%19: f32[1, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {2}, {2}, {8}], value=1.0) from [0]
%20: f32[1, 2, 2, 8] = where(%11, %19, %18) from [0]
%21: f32[1, 2, 4, 2, 8] = mul(%4, %16) from [0]
%22: f32[1, 2, 2, 8] = sum(%21; dims=[2]) from [0]
%23: f32[1, 2, 2, 8] = div(%22, %20) from [0]
%24: f32[1, 4, 1, 8] = reshape(%23; shape=[{1}, {4}, {1}, {8}]) from [0]
%3: bf16[1, 4, 1, 8] = convert(%24; dtype=bf16) from [0]
return %3: bf16[1, 4, 1, 8]@[32, 8, 8, 1]
""",
    )
