"""Which attention kernels compute; `test_compute_attention.py` tests the reasons and the results."""

from __future__ import annotations

import pytest

from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

LAYERS = """\
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: bf16[1, 4, 2, 8]@[64, 16, 8, 1] = input "two"
%7: bf16[1, 4, 16, 8]@[512, 128, 8, 1] = input "queries"
%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
%5: bf16[1, 4, 2, 8]@[64, 8, 32, 1] = extern(%3, %1, %2; is_contraction=true, node=1, op="aten.scaled_dot_product_attention.default", scale=0.5) from [1]
%6: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2; is_contraction=true, node=2, op="aten.scaled_dot_product_attention.default") from [2]
%8: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = extern(%7, %1, %2; is_causal=true, is_contraction=true, node=3, op="aten.scaled_dot_product_attention.default", scale=0.5) from [3]
return %8: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %4: bf16[1, 4, 1, 8]@[32, 8, 32, 1], %5: bf16[1, 4, 2, 8]@[64, 8, 32, 1], %6: bf16[1, 4, 1, 8]@[32, 8, 32, 1]
"""


@pytest.mark.golden
def test_attention_of_one_query_or_of_many_with_a_scale_is_by_kernels() -> None:
    assert_golden(
        before_and_after("choose-attention", LAYERS, "cpu:x86-64-v4-amd"),
        """\
-- before choose-attention: graph
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: bf16[1, 4, 2, 8]@[64, 16, 8, 1] = input "two"
%7: bf16[1, 4, 16, 8]@[512, 128, 8, 1] = input "queries"
%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
%5: bf16[1, 4, 2, 8]@[64, 8, 32, 1] = extern(%3, %1, %2; is_contraction=true, node=1, op="aten.scaled_dot_product_attention.default", scale=0.5) from [1]
%6: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2; is_contraction=true, node=2, op="aten.scaled_dot_product_attention.default") from [2]
%8: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = extern(%7, %1, %2; is_causal=true, is_contraction=true, node=3, op="aten.scaled_dot_product_attention.default", scale=0.5) from [3]
return %8: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %4: bf16[1, 4, 1, 8]@[32, 8, 32, 1], %5: bf16[1, 4, 2, 8]@[64, 8, 32, 1], %6: bf16[1, 4, 1, 8]@[32, 8, 32, 1]
-- after: attention
by kernels: %4, %8
attention: 1 of one query by kernels
attention: 1 of several queries by kernels
attention: 1 by the framework: of 2 to 15 queries
attention: 1 by the framework: it has dropout, or a scale that varies
""",
    )


ONE_QUERY = """\
graph prims 1
%0: bf16[2, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[2, 2, 512, 8]@[8192, 4096, 8, 1] = input "k"
%2: bf16[2, 4, 16, 8]@[512, 128, 8, 1] = input "queries"
%3: f32[2, 4, 1, 8]@[32, 8, 8, 1] = input "wide"
%4: f32[2, 2, 512, 8]@[8192, 4096, 8, 1] = input "wide keys"
%5: bf16[2, 2, 100, 8]@[1600, 800, 8, 1] = input "few"
%6: bf16[2, 2, 1, 256]@[512, 256, 256, 1] = input "long"
%7: bf16[2, 2, 512, 256]@[262144, 131072, 256, 1] = input "long keys"
%8: bf16[2, 1, 1, 1]@[1, 1, 1, 1] = input "mask"
%9: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %1; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
%10: bf16[2, 4, 16, 8]@[512, 8, 32, 1] = extern(%2, %1, %1; is_contraction=true, node=1, op="aten.scaled_dot_product_attention.default", scale=0.5) from [1]
%11: f32[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%3, %4, %4; is_contraction=true, node=2, op="aten.scaled_dot_product_attention.default", scale=0.5) from [2]
%12: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %5, %5; is_contraction=true, node=3, op="aten.scaled_dot_product_attention.default", scale=0.5) from [3]
%13: bf16[2, 2, 1, 256]@[512, 256, 512, 1] = extern(%6, %7, %7; is_contraction=true, node=4, op="aten.scaled_dot_product_attention.default", scale=0.5) from [4]
%14: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %1, %8; is_contraction=true, node=5, op="aten.scaled_dot_product_attention.default", scale=0.5) from [5]
%15: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %1; is_causal=true, is_contraction=true, node=6, op="aten.scaled_dot_product_attention.default", scale=0.5) from [6]
%16: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %1; is_contraction=true, node=7, op="aten.scaled_dot_product_attention.default") from [7]
%17: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %6, %6; is_contraction=true, node=8, op="aten.scaled_dot_product_attention.default", scale=0.5) from [8]
return %9: bf16[2, 4, 1, 8]@[32, 8, 32, 1], %10: bf16[2, 4, 16, 8]@[512, 8, 32, 1], %11: f32[2, 4, 1, 8]@[32, 8, 32, 1], %12: bf16[2, 4, 1, 8]@[32, 8, 32, 1], %13: bf16[2, 2, 1, 256]@[512, 256, 512, 1], %14: bf16[2, 4, 1, 8]@[32, 8, 32, 1], %15: bf16[2, 4, 1, 8]@[32, 8, 32, 1], %16: bf16[2, 4, 1, 8]@[32, 8, 32, 1], %17: bf16[2, 4, 1, 8]@[32, 8, 32, 1]
"""


@pytest.mark.golden
def test_gpus_divide_the_keys_of_few_queries() -> None:
    assert_golden(
        before_and_after("choose-attention", ONE_QUERY, "cuda:sm_90a").partition("-- after")[2],
        """\
: attention
by kernels: %9, %10
attention: 1 of one query, keys in 4 parts, by kernels
attention: 1 of several queries, keys in 4 parts, by kernels
attention: 1 by the framework: of f32, for which kernels were not timed
attention: 1 by the framework: of less than 128 keys
attention: 1 by the framework: of heads of more than 128 elements
attention: 1 by the framework: with a mask that is one for all keys
attention: 1 by the framework: of one query that sees one key
attention: 1 by the framework: it has dropout, or a scale that varies
attention: 1 by the framework: of other operands
""",
    )
