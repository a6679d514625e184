"""What attention becomes: of one query for each head, of several, of pages, and of keys in parts."""

from __future__ import annotations

import pytest

from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

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


MANY_QUERIES = (
    PAGES.replace("[2, 4, 1, 8]@[32, 8, 8, 1]", "[2, 4, 70, 32]@[8960, 2240, 32, 1]")
    .replace("[2, 4, 1, 8]@[32, 8, 32, 1]", "[2, 4, 70, 32]@[8960, 32, 128, 1]")
    .replace(", 8]", ", 32]")
    .replace("{8}", "{32}")
    .replace("@[256, 128, 8, 1]", "@[1024, 512, 32, 1]")
    .replace("256]", "1024]")
    .replace("[256, 1]", "[1024, 1]")
)


@pytest.mark.golden
def test_a_template_of_many_queries_reads_pages_as_well() -> None:
    after = before_and_after("compute-attention", MANY_QUERIES, "cuda:sm_90a")
    # What attention becomes begins behind the gathers, which nothing reads any more.
    assert_golden(
        after.partition("-- after")[2].partition("%12:")[2],
        """\
 bf16[2, 2, 160, 32] = permute(%11; dims=[0, 2, 1, 3]) from [7]
%15: bf16[99, 16, 2, 32] = reshape(%2; shape=[{99}, {16}, {2}, {32}]) from [8]
%16: bf16[99, 2, 16, 32] = permute(%1; dims=[0, 1, 2, 3]) from [8]
%17: bf16[99, 2, 16, 32] = permute(%15; dims=[0, 2, 1, 3]) from [8]
%18: i64[2, 10] = reshape(%5; shape=[{2}, {10}]) from [8]
%14: bf16[2, 70, 4, 32]@[8960, 128, 32, 1] = extern(%0, %16, %17, %18, %3, %4; is_contraction=false, length={160}, node=8, op="template.paged_flash_attention", scale=0.5) from [8]
%13: bf16[2, 4, 70, 32] = permute(%14; dims=[0, 2, 1, 3]) from [8]
return %13: bf16[2, 4, 70, 32]@[8960, 32, 128, 1]
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


BIAS = """\
graph prims 1
%0: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1] = input "queries"
%1: f32[8, 2, 64]@[128, 64, 1] = input "sums"
%3: bf16[2, 64, 64]@[4096, 64, 1] = input "bias"
%10: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1], %11: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1], %12: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1], %13: bf16[2, 64, 64]@[4096, 64, 1] = extern(%0, %0, %1, %0, %0, %0, %3; is_contraction=true, node=0, op="kernelfarm.attention_backward.default", scale=0.5) from [0]
return %10: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1], %13: bf16[2, 64, 64]@[4096, 64, 1]
"""


@pytest.mark.golden
def test_prims_sum_the_parts_of_the_gradient_of_a_mask() -> None:
    assert_golden(
        before_and_after("compute-attention", BIAS, "cuda:sm_90a").partition("-- after")[2],
        """\
: graph
graph prims 1
%0: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1] = input "queries"
%1: f32[8, 2, 64]@[128, 64, 1] = input "sums"
%3: bf16[2, 64, 64]@[4096, 64, 1] = input "bias"
%14: f32[8, 64, 2, 32]@[4096, 64, 32, 1], %15: bf16[8, 64, 2, 32]@[4096, 64, 32, 1], %16: bf16[8, 64, 2, 32]@[4096, 64, 32, 1], %17: f32[8, 2, 2, 64]@[256, 128, 64, 1] = extern(%0, %0, %0, %0, %0, %1, %3; is_contraction=false, node=0, op="template.flash_gradients", scale=0.5) from [0]
%18: f32[8, 64, 2, 32] = full(; dtype=f32, shape=[{8}, {64}, {2}, {32}], value=0.5) from [0]
%19: f32[8, 64, 2, 32] = mul(%14, %18) from [0]
%20: bf16[8, 64, 2, 32] = convert(%19; dtype=bf16) from [0]
%10: bf16[8, 2, 64, 32] = permute(%20; dims=[0, 2, 1, 3]) from [0]
%11: bf16[8, 2, 64, 32] = permute(%15; dims=[0, 2, 1, 3]) from [0]
%12: bf16[8, 2, 64, 32] = permute(%16; dims=[0, 2, 1, 3]) from [0]
%21: f32[2, 2, 64, 64]@[8192, 4096, 64, 1] = extern(%0, %0, %0, %0, %17, %3; is_contraction=false, node=0, op="template.flash_mask_gradient", scale=0.5) from [0]
%22: f32[2, 64, 64] = sum(%21; dims=[0]) from [0]
%23: bf16[2, 64, 64] = convert(%22; dtype=bf16) from [0]
%13: bf16[2, 64, 64] = reshape(%23; shape=[{2}, {64}, {64}]) from [0]
return %10: bf16[8, 2, 64, 32]@[4096, 2048, 32, 1], %13: bf16[2, 64, 64]@[4096, 64, 1]
""",
    )
