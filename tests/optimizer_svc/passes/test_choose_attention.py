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
