"""Gradients of attention that kernels compute on some processors, with its log-sum-exps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.targets import AttentionFacts, TargetFacts, target_facts
from optimizer_svc.pipeline import optimize
from tests.support.attention_forms import Form, traced_with_gradients
from tests.support.compiled_kernels import run_targets, unless_it_runs
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compiled_for
from tests.support.optimizer_passes import before_and_after

B, H, QUERIES, KEYS, WIDTH = 2, 6, 29, 37, 16
PAIRS = "cpu:x86-64-v4-bf16-amd"
TYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}
FACTS = AttentionFacts(
    one_query=(),
    several_queries=("bf16", "f16", "f32"),
    least_queries=16,
    most_score_bytes=1 << 20,
    gradients=("bf16", "f16", "f32"),
)

GRADIENTS = """\
graph prims 1
%0: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "grad"
%1: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "output"
%2: f32[1, 4, 16]@[64, 16, 1] = input "sums"
%3: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "q"
%4: bf16[1, 2, 20, 8]@[320, 8, 16, 1] = input "k"
%5: bf16[1, 2, 20, 8]@[320, 8, 16, 1] = input "v"
%6: bf16[16, 20]@[20, 1] = input "mask"
%7: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %8: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %9: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %10: bf16[0]@[1] = extern(%0, %1, %2, %3, %4, %5, %6; is_contraction=true, node=0, op="kernelfarm.attention_backward.default", scale=0.5) from [0]
return %7: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %8: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %9: bf16[1, 2, 20, 8]@[320, 8, 16, 1]
"""


@pytest.mark.golden
def test_pairs_of_bf16_are_multiplied_along_adjacent_queries_or_keys() -> None:
    assert_golden(
        before_and_after("compute-attention-gradients", GRADIENTS, PAIRS).partition("-- after")[2],
        """\
: graph
graph prims 1
%0: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "grad"
%1: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "output"
%2: f32[1, 4, 16]@[64, 16, 1] = input "sums"
%3: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "q"
%4: bf16[1, 2, 20, 8]@[320, 8, 16, 1] = input "k"
%5: bf16[1, 2, 20, 8]@[320, 8, 16, 1] = input "v"
%6: bf16[16, 20]@[20, 1] = input "mask"
%16: bf16[1, 2, 2, 16, 8] = reshape(%0; shape=[{1}, {2}, {2}, {16}, {8}]) from [0]
%17: bf16[1, 2, 2, 16, 8] = reshape(%1; shape=[{1}, {2}, {2}, {16}, {8}]) from [0]
%18: bf16[1, 2, 2, 16, 8] = reshape(%3; shape=[{1}, {2}, {2}, {16}, {8}]) from [0]
%19: f32[1, 2, 2, 16] = reshape(%2; shape=[{1}, {2}, {2}, {16}]) from [0]
%20: f32[1, 2, 20, 8] = convert(%4; dtype=f32) from [0]
%21: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%20; dims=[0, 1, 3, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%22: f32[1, 2, 2, 16, 8] = convert(%18; dtype=f32) from [0]
%23: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%22; dims=[0, 1, 2, 4, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%24: f32[1, 2, 2, 20, 16, 8] = mul(%21, %23) from [0]
%25: f32[1, 2, 2, 20, 16] = sum(%24; dims=[5]) from [0]
%26: f32[1, 2, 2, 20, 16] = full(; dtype=f32, shape=[{1}, {2}, {2}, {20}, {16}], value=0.5) from [0]
%27: f32[1, 2, 2, 20, 16] = mul(%25, %26) from [0]
%28: f32[16, 20] = convert(%6; dtype=f32) from [0]
%29: f32[1, 1, 1, 16, 20] = reshape(%28; shape=[{1}, {1}, {1}, {16}, {20}]) from [0]
%30: f32[1, 1, 1, 20, 16] = permute(%29; dims=[0, 1, 2, 4, 3]) from [0]
%31: f32[1, 2, 2, 20, 16] = broadcast_in_dim(%30; dims=[0, 1, 2, 3, 4], shape=[{1}, {2}, {2}, {20}, {16}]) from [0]
%32: f32[1, 2, 2, 20, 16] = add(%27, %31) from [0]
%33: f32[1, 2, 2, 20, 16] = broadcast_in_dim(%19; dims=[0, 1, 2, 4], shape=[{1}, {2}, {2}, {20}, {16}]) from [0]
%34: f32[1, 2, 2, 20, 16] = sub(%32, %33) from [0]
%35: f32[1, 2, 2, 20, 16] = exp(%34) from [0]
%11: bf16[1, 2, 2, 20, 16] = convert(%35; dtype=bf16, is_cast=true) from [0]
%36: f32[1, 2, 2, 16, 8] = convert(%16; dtype=f32) from [0]
%37: f32[1, 2, 2, 16, 8] = convert(%17; dtype=f32) from [0]
%38: f32[1, 2, 2, 16, 8] = mul(%36, %37) from [0]
%39: f32[1, 2, 2, 16] = sum(%38; dims=[4]) from [0]
%40: f32[1, 2, 20, 8] = convert(%5; dtype=f32) from [0]
%41: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%40; dims=[0, 1, 3, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%42: f32[1, 2, 2, 16, 8] = convert(%16; dtype=f32) from [0]
%43: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%42; dims=[0, 1, 2, 4, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%44: f32[1, 2, 2, 20, 16, 8] = mul(%41, %43) from [0]
%45: f32[1, 2, 2, 20, 16] = sum(%44; dims=[5]) from [0]
%46: f32[1, 2, 2, 20, 16] = broadcast_in_dim(%39; dims=[0, 1, 2, 4], shape=[{1}, {2}, {2}, {20}, {16}]) from [0]
%47: f32[1, 2, 2, 20, 16] = sub(%45, %46) from [0]
%48: f32[1, 2, 2, 20, 16] = convert(%11; dtype=f32) from [0]
%49: f32[1, 2, 2, 20, 16] = mul(%48, %47) from [0]
%12: bf16[1, 2, 2, 20, 16] = convert(%49; dtype=bf16, is_cast=true) from [0]
%50: f32[1, 2, 2, 20, 16] = convert(%12; dtype=f32) from [0]
%13: bf16[1, 2, 8, 20] = permute(%4; dims=[0, 1, 3, 2]) from [0]
%51: f32[1, 2, 8, 20] = convert(%13; dtype=f32) from [0]
%52: f32[1, 2, 2, 8, 16, 20] = broadcast_in_dim(%51; dims=[0, 1, 3, 5], shape=[{1}, {2}, {2}, {8}, {16}, {20}]) from [0]
%53: f32[1, 2, 2, 16, 20] = permute(%50; dims=[0, 1, 2, 4, 3]) from [0]
%54: f32[1, 2, 2, 8, 16, 20] = broadcast_in_dim(%53; dims=[0, 1, 2, 4, 5], shape=[{1}, {2}, {2}, {8}, {16}, {20}]) from [0]
%55: f32[1, 2, 2, 8, 16, 20] = mul(%52, %54) from [0]
%14: f32[1, 2, 2, 8, 16] = sum(%55; dims=[5]) from [0]
%57: f32[1, 16, 2, 2, 8] = permute(%14; dims=[0, 4, 1, 2, 3]) from [0]
%58: f32[1, 16, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {16}, {2}, {2}, {8}], value=0.5) from [0]
%59: f32[1, 16, 2, 2, 8] = mul(%57, %58) from [0]
%60: f32[1, 16, 4, 8] = reshape(%59; shape=[{1}, {16}, {4}, {8}]) from [0]
%61: bf16[1, 16, 4, 8] = convert(%60; dtype=bf16) from [0]
%7: bf16[1, 4, 16, 8] = permute(%61; dims=[0, 2, 1, 3]) from [0]
%62: f32[1, 2, 2, 20, 16] = convert(%12; dtype=f32) from [0]
%63: f32[1, 20, 2, 2, 16] = permute(%62; dims=[0, 3, 1, 2, 4]) from [0]
%64: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%63; dims=[0, 1, 2, 3, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%65: f32[1, 2, 2, 16, 8] = convert(%18; dtype=f32) from [0]
%66: f32[1, 2, 2, 8, 16] = permute(%65; dims=[0, 1, 2, 4, 3]) from [0]
%67: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%66; dims=[0, 2, 3, 4, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%68: f32[1, 20, 2, 2, 8, 16] = mul(%64, %67) from [0]
%69: f32[1, 20, 2, 2, 8] = sum(%68; dims=[5]) from [0]
%70: f32[1, 20, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {20}, {2}, {2}, {8}], value=0.5) from [0]
%71: f32[1, 20, 2, 2, 8] = mul(%69, %70) from [0]
%72: f32[1, 20, 2, 8] = sum(%71; dims=[3]) from [0]
%73: f32[1, 20, 2, 8] = reshape(%72; shape=[{1}, {20}, {2}, {8}]) from [0]
%74: bf16[1, 20, 2, 8] = convert(%73; dtype=bf16) from [0]
%8: bf16[1, 2, 20, 8] = permute(%74; dims=[0, 2, 1, 3]) from [0]
%75: f32[1, 2, 2, 20, 16] = convert(%11; dtype=f32) from [0]
%76: f32[1, 20, 2, 2, 16] = permute(%75; dims=[0, 3, 1, 2, 4]) from [0]
%77: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%76; dims=[0, 1, 2, 3, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%78: f32[1, 2, 2, 16, 8] = convert(%16; dtype=f32) from [0]
%79: f32[1, 2, 2, 8, 16] = permute(%78; dims=[0, 1, 2, 4, 3]) from [0]
%80: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%79; dims=[0, 2, 3, 4, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%81: f32[1, 20, 2, 2, 8, 16] = mul(%77, %80) from [0]
%82: f32[1, 20, 2, 2, 8] = sum(%81; dims=[5]) from [0]
%83: f32[1, 20, 2, 8] = sum(%82; dims=[3]) from [0]
%84: f32[1, 20, 2, 8] = reshape(%83; shape=[{1}, {20}, {2}, {8}]) from [0]
%85: bf16[1, 20, 2, 8] = convert(%84; dtype=bf16) from [0]
%9: bf16[1, 2, 20, 8] = permute(%85; dims=[0, 2, 1, 3]) from [0]
return %7: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %8: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %9: bf16[1, 2, 20, 8]@[320, 8, 16, 1]
""",
    )


@pytest.mark.golden
def test_gradients_become_five_products() -> None:
    text = GRADIENTS.replace("bf16", "f32").replace(", %6;", "; is_causal=true,")
    assert_golden(
        before_and_after("compute-attention-gradients", text, "cpu:x86-64-v4-amd").partition(
            "-- after"
        )[2],
        """\
: graph
graph prims 1
%0: f32[1, 4, 16, 8]@[512, 8, 32, 1] = input "grad"
%1: f32[1, 4, 16, 8]@[512, 8, 32, 1] = input "output"
%2: f32[1, 4, 16]@[64, 16, 1] = input "sums"
%3: f32[1, 4, 16, 8]@[512, 8, 32, 1] = input "q"
%4: f32[1, 2, 20, 8]@[320, 8, 16, 1] = input "k"
%5: f32[1, 2, 20, 8]@[320, 8, 16, 1] = input "v"
%6: f32[16, 20]@[20, 1] = input "mask"
%16: f32[1, 2, 2, 16, 8] = reshape(%0; shape=[{1}, {2}, {2}, {16}, {8}]) from [0]
%17: f32[1, 2, 2, 16, 8] = reshape(%1; shape=[{1}, {2}, {2}, {16}, {8}]) from [0]
%18: f32[1, 2, 2, 16, 8] = reshape(%3; shape=[{1}, {2}, {2}, {16}, {8}]) from [0]
%19: f32[1, 2, 2, 16] = reshape(%2; shape=[{1}, {2}, {2}, {16}]) from [0]
%20: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%4; dims=[0, 1, 3, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%21: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%18; dims=[0, 1, 2, 4, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%22: f32[1, 2, 2, 20, 16, 8] = mul(%20, %21) from [0]
%23: f32[1, 2, 2, 20, 16] = sum(%22; dims=[5]) from [0]
%24: f32[1, 2, 2, 20, 16] = full(; dtype=f32, shape=[{1}, {2}, {2}, {20}, {16}], value=0.5) from [0]
%25: f32[1, 2, 2, 20, 16] = mul(%23, %24) from [0]
%26: i64[20] = iota(; dtype=i64, length={20}) from [0]
%27: i64[20, 16] = broadcast_in_dim(%26; dims=[0], shape=[{20}, {16}]) from [0]
%28: i64[16] = iota(; dtype=i64, length={16}) from [0]
%29: i64[20, 16] = broadcast_in_dim(%28; dims=[1], shape=[{20}, {16}]) from [0]
%30: bool[20, 16] = ge(%29, %27) from [0]
%31: bool[1, 2, 2, 20, 16] = broadcast_in_dim(%30; dims=[3, 4], shape=[{1}, {2}, {2}, {20}, {16}]) from [0]
%32: f32[1, 2, 2, 20, 16] = full(; dtype=f32, shape=[{1}, {2}, {2}, {20}, {16}], value=-inf) from [0]
%33: f32[1, 2, 2, 20, 16] = where(%31, %25, %32) from [0]
%34: f32[1, 2, 2, 20, 16] = broadcast_in_dim(%19; dims=[0, 1, 2, 4], shape=[{1}, {2}, {2}, {20}, {16}]) from [0]
%35: f32[1, 2, 2, 20, 16] = sub(%33, %34) from [0]
%11: f32[1, 2, 2, 20, 16] = exp(%35) from [0]
%36: f32[1, 2, 2, 16, 8] = mul(%16, %17) from [0]
%37: f32[1, 2, 2, 16] = sum(%36; dims=[4]) from [0]
%38: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%5; dims=[0, 1, 3, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%39: f32[1, 2, 2, 20, 16, 8] = broadcast_in_dim(%16; dims=[0, 1, 2, 4, 5], shape=[{1}, {2}, {2}, {20}, {16}, {8}]) from [0]
%40: f32[1, 2, 2, 20, 16, 8] = mul(%38, %39) from [0]
%41: f32[1, 2, 2, 20, 16] = sum(%40; dims=[5]) from [0]
%42: f32[1, 2, 2, 20, 16] = broadcast_in_dim(%37; dims=[0, 1, 2, 4], shape=[{1}, {2}, {2}, {20}, {16}]) from [0]
%43: f32[1, 2, 2, 20, 16] = sub(%41, %42) from [0]
%12: f32[1, 2, 2, 20, 16] = mul(%11, %43) from [0]
%44: f32[1, 16, 2, 2, 20] = permute(%12; dims=[0, 4, 1, 2, 3]) from [0]
%45: f32[1, 16, 2, 2, 8, 20] = broadcast_in_dim(%44; dims=[0, 1, 2, 3, 5], shape=[{1}, {16}, {2}, {2}, {8}, {20}]) from [0]
%46: f32[1, 2, 8, 20] = permute(%4; dims=[0, 1, 3, 2]) from [0]
%47: f32[1, 16, 2, 2, 8, 20] = broadcast_in_dim(%46; dims=[0, 2, 4, 5], shape=[{1}, {16}, {2}, {2}, {8}, {20}]) from [0]
%48: f32[1, 16, 2, 2, 8, 20] = mul(%45, %47) from [0]
%14: f32[1, 16, 2, 2, 8] = sum(%48; dims=[5]) from [0]
%50: f32[1, 16, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {16}, {2}, {2}, {8}], value=0.5) from [0]
%51: f32[1, 16, 2, 2, 8] = mul(%14, %50) from [0]
%52: f32[1, 16, 4, 8] = reshape(%51; shape=[{1}, {16}, {4}, {8}]) from [0]
%53: f32[1, 16, 4, 8] = convert(%52; dtype=f32) from [0]
%7: f32[1, 4, 16, 8] = permute(%53; dims=[0, 2, 1, 3]) from [0]
%54: f32[1, 20, 2, 2, 16] = permute(%12; dims=[0, 3, 1, 2, 4]) from [0]
%55: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%54; dims=[0, 1, 2, 3, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%56: f32[1, 2, 2, 8, 16] = permute(%18; dims=[0, 1, 2, 4, 3]) from [0]
%57: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%56; dims=[0, 2, 3, 4, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%58: f32[1, 20, 2, 2, 8, 16] = mul(%55, %57) from [0]
%59: f32[1, 20, 2, 2, 8] = sum(%58; dims=[5]) from [0]
%60: f32[1, 20, 2, 2, 8] = full(; dtype=f32, shape=[{1}, {20}, {2}, {2}, {8}], value=0.5) from [0]
%61: f32[1, 20, 2, 2, 8] = mul(%59, %60) from [0]
%62: f32[1, 20, 2, 8] = sum(%61; dims=[3]) from [0]
%63: f32[1, 20, 2, 8] = reshape(%62; shape=[{1}, {20}, {2}, {8}]) from [0]
%64: f32[1, 20, 2, 8] = convert(%63; dtype=f32) from [0]
%8: f32[1, 2, 20, 8] = permute(%64; dims=[0, 2, 1, 3]) from [0]
%65: f32[1, 20, 2, 2, 16] = permute(%11; dims=[0, 3, 1, 2, 4]) from [0]
%66: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%65; dims=[0, 1, 2, 3, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%67: f32[1, 2, 2, 8, 16] = permute(%16; dims=[0, 1, 2, 4, 3]) from [0]
%68: f32[1, 20, 2, 2, 8, 16] = broadcast_in_dim(%67; dims=[0, 2, 3, 4, 5], shape=[{1}, {20}, {2}, {2}, {8}, {16}]) from [0]
%69: f32[1, 20, 2, 2, 8, 16] = mul(%66, %68) from [0]
%70: f32[1, 20, 2, 2, 8] = sum(%69; dims=[5]) from [0]
%71: f32[1, 20, 2, 8] = sum(%70; dims=[3]) from [0]
%72: f32[1, 20, 2, 8] = reshape(%71; shape=[{1}, {20}, {2}, {8}]) from [0]
%73: f32[1, 20, 2, 8] = convert(%72; dtype=f32) from [0]
%9: f32[1, 2, 20, 8] = permute(%73; dims=[0, 2, 1, 3]) from [0]
return %7: f32[1, 4, 16, 8]@[512, 8, 32, 1], %8: f32[1, 2, 20, 8]@[320, 8, 16, 1], %9: f32[1, 2, 20, 8]@[320, 8, 16, 1]
""",
    )


MASKED = GRADIENTS.replace("bf16", "f32").replace("%10: f32[0]@[1]", "%10: f32[16, 20]@[20, 1]")
_RETURNED = "return %10: f32[16, 20]@[20, 1]\n"


@pytest.mark.golden
def test_the_gradient_of_a_mask_is_a_sum_of_those_of_scores() -> None:
    text = MASKED.partition("return ")[0] + _RETURNED
    after = before_and_after("compute-attention-gradients", text, "cpu:x86-64-v4-amd")
    assert_golden(
        after.partition("-- after")[2].partition("%9: ")[2],
        """\
f32[1, 2, 20, 8] = permute(%69; dims=[0, 2, 1, 3]) from [0]
%15: f32[1, 20, 16] = sum(%12; dims=[1, 2]) from [0]
%71: f32[1, 16, 20] = permute(%15; dims=[0, 2, 1]) from [0]
%10: f32[16, 20] = reshape(%71; shape=[{16}, {20}]) from [0]
return %10: f32[16, 20]@[20, 1]
""",
    )


@pytest.mark.golden
def test_a_mask_of_all_scores_has_their_gradients() -> None:
    text = MASKED.partition("return ")[0] + _RETURNED
    text = text.replace("[16, 20]@[20, 1]", "[1, 4, 16, 20]@[1280, 320, 20, 1]")
    after = before_and_after("compute-attention-gradients", text, "cpu:x86-64-v4-amd")
    assert_golden(
        after.partition("-- after")[2].partition("%9: ")[2],
        """\
f32[1, 2, 20, 8] = permute(%69; dims=[0, 2, 1, 3]) from [0]
%70: f32[1, 2, 2, 16, 20] = permute(%12; dims=[0, 1, 2, 4, 3]) from [0]
%10: f32[1, 4, 16, 20] = reshape(%70; shape=[{1}, {4}, {16}, {20}]) from [0]
return %10: f32[1, 4, 16, 20]@[1280, 320, 20, 1]
""",
    )


def attending(name: str) -> TargetFacts:
    rounded = ("bf16",) if name == PAIRS else ()
    return replace(target_facts(name), attention=replace(FACTS, rounded_shares=rounded))


def attend(query: Tensor, key: Tensor, value: Tensor, *masks: Tensor, **how: Any) -> Tensor:
    """Attention whose layout no one sees."""
    mask = masks[0] if masks else None
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True, **how
    )
    return found.transpose(1, 2).flatten(2) + 0


def heads(groups: int = H, value_width: int = WIDTH, queries: int = QUERIES) -> list[Tensor]:
    """Queries, keys and values in memory as projections give them."""
    shapes = ((H, queries, WIDTH), (groups, KEYS, WIDTH), (groups, KEYS, value_width))
    return [torch.randn(B, n, count, width).transpose(1, 2) for count, n, width in shapes]


def seen() -> Tensor:
    """A mask whose first query sees no key."""
    mask = torch.rand(B, 1, QUERIES, KEYS) < 0.6
    mask[:, :, 0] = False
    return mask


FORMS: dict[str, tuple[Callable[[], list[Tensor]], dict[str, Any]]] = {
    "plain": (lambda: heads(value_width=24), {}),
    "heads share keys": (lambda: heads(groups=2), {"scale": 0.3}),
    "causal": (lambda: [*heads(queries=44)], {"is_causal": True}),
    "some queries see no key": (lambda: [*heads(), seen()], {}),
    "numbers for keys": (lambda: [*heads(), torch.randn(B, 1, 1, KEYS)], {}),
    "numbers for heads": (lambda: [*heads(groups=3), torch.randn(1, H, QUERIES, KEYS)], {}),
    "columns side by side": (lambda: [t.mT.contiguous().mT for t in heads()], {}),
}


def cases() -> list[Any]:
    """Forms of attention on the targets whose code differs."""
    found = [
        pytest.param(target, dtype, form, marks=unless_it_runs(target))
        for target, dtype in ((PAIRS, torch.bfloat16), ("cpu:x86-64-v3", torch.float32))
        for form in FORMS
    ]
    found += [
        pytest.param(*run.values, dtype, "heads share keys", marks=run.marks)
        for run in run_targets()
        for dtype in (torch.bfloat16, torch.float16)
    ]
    return found


def gradients(layer: Callable[..., Tensor], given: list[Tensor], how: dict[str, Any]) -> Any:
    """The result, and the gradients of queries, keys and values."""
    leaves = [tensor.detach().requires_grad_() for tensor in given[:3]]
    result = layer(*leaves, *given[3:], **how)
    grad = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).sin() * 2
    return result.detach(), *torch.autograd.grad(
        result, leaves, grad.reshape(result.shape).to(result.dtype)
    )


def wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.bool else tensor.double()


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "dtype", "form"), cases())
def test_gradients_are_as_exact_as_by_the_framework(
    target: str, dtype: torch.dtype, form: str
) -> None:
    torch.manual_seed(0)
    make, how = FORMS[form]
    given = [t if t.dtype is torch.bool else t.to(dtype) for t in make()]
    counts = Counts()
    ours = gradients(compiled_for(attend, attending(target), counts), given, how)
    assert not counts.externs
    eager = gradients(attend, given, how)
    exact = gradients(attend, [wide(tensor) for tensor in given], how)
    for found, other, reference in zip(ours, eager, exact, strict=True):
        errors = [(each.double() - reference).abs().max().item() for each in (found, other)]
        assert errors[0] <= max(4 * errors[1], TYPES[dtype])


@pytest.mark.parametrize("target", [PAIRS, "cpu:x86-64-v4-amd"])
def test_products_of_gradients_are_in_tiles(target: str) -> None:
    """Where pairs of bf16 are multiplied, the terms of each row are adjacent in memory."""
    form = Form(groups=1, mask=(1, 1, 70))
    graph = traced_with_gradients(form, form.operands())[-1].graph
    kernels = optimize(decompose_to_prims(graph).graph, target_facts(target)).program.kernels
    found = [p for p in map(find_processor_product, kernels) if p is not None]
    adjacent = sum(product.left.inner is ONE for product in found)
    assert (len(found), adjacent) == (5, 5 if target == PAIRS else 4)
