"""Which attention kernels compute; `test_compute_attention.py` tests the reasons and the results."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.verify import verify_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.choose_attention import choose_attention
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


PAGES = """\
graph prims 1
%0: bf16[2, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[99, 16, 2, 8]@[256, 16, 8, 1] = input "keys"
%2: bf16[99, 16, 2, 8]@[256, 16, 8, 1] = input "values"
%3: i32[2, 10]@[10, 1] = input "table"
%4: bf16[2, 10, 16, 2, 8] = take(%1, %3; dim=0) from [0]
%5: bf16[2, 160, 2, 8] = reshape(%4; shape=[{2}, {160}, {2}, {8}]) from [1]
%6: bf16[2, 2, 160, 8] = permute(%5; dims=[0, 2, 1, 3]) from [2]
%7: bf16[2, 10, 16, 2, 8] = take(%2, %3; dim=0) from [3]
%8: bf16[2, 160, 2, 8] = reshape(%7; shape=[{2}, {160}, {2}, {8}]) from [4]
%9: bf16[2, 2, 160, 8] = permute(%8; dims=[0, 2, 1, 3]) from [5]
%10: bf16[2, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %6, %9; is_contraction=true, node=6, op="aten.scaled_dot_product_attention.default", scale=0.5) from [6]
return %10: bf16[2, 4, 1, 8]@[32, 8, 32, 1]
"""


@pytest.mark.golden
def test_gpus_read_keys_in_pages_where_they_are() -> None:
    assert_golden(
        before_and_after("choose-attention", PAGES, "cuda:sm_90a").partition("-- after")[2],
        """\
: attention
by kernels: %10
attention: 1 of one query, keys in 1 parts, in pages, by kernels
""",
    )


_TAKE = "%4: bf16[2, 10, 16, 2, 8] = take(%1, %3; dim=0)"
_ROWS = "%5: bf16[2, 160, 2, 8] = reshape(%4; shape=[{2}, {160}, {2}, {8}]) from [1]"
_VALUES = "%8: bf16[2, 160, 2, 8] = reshape(%7; shape=[{2}, {160}, {2}, {8}]) from [4]"
_KEYS = "%1: bf16[99, 16, 2, 8]@[256, 16, 8, 1]"
_RESULT = "return %10: bf16[2, 4, 1, 8]@[32, 8, 32, 1]"


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (
            "something else reads them, too",
            {_RESULT: f"{_RESULT}, %6: bf16[2, 2, 160, 8]@[2560, 1280, 8, 1]"},
        ),
        (
            "something else reads them, too",
            {
                _ROWS: f"{_ROWS}\n%11: bf16[2, 160, 2, 8] = neg(%5) from [7]",
                _RESULT: f"{_RESULT}, %11: bf16[2, 160, 2, 8]@[2560, 16, 8, 1]",
            },
        ),
        (
            "the cache is computed",
            {_TAKE: f"%11: bf16[99, 16, 2, 8] = neg(%1) from [7]\n{_TAKE.replace('%1,', '%11,')}"},
        ),
        (
            "only keys are in pages, or only values",
            {
                "take(%2, %3; dim=0) from [3]": "broadcast_in_dim(%2; dims=[1, 2, 3, 4],"
                " shape=[{2}, {10}, {16}, {2}, {8}]) from [3]",
                "%2: bf16[99, 16, 2, 8]@[256, 16, 8, 1]": "%2: bf16[10, 16, 2, 8]@[256, 16, 8, 1]",
            },
        ),
        (
            "they are not gathered by numbers of pages alone",
            {
                _KEYS: "%1: bf16[16, 99, 2, 8]@[1584, 16, 8, 1]",
                _TAKE: "%11: bf16[16, 2, 10, 2, 8] = take(%1, %3; dim=1) from [7]\n"
                "%4: bf16[2, 10, 16, 2, 8] = permute(%11; dims=[1, 2, 0, 3, 4])",
            },
        ),
        (
            "their pages are in no table of sequences",
            {
                "%3: i32[2, 10]@[10, 1]": "%3: i32[10, 2]@[2, 1]",
                "%4: bf16[2, 10, 16, 2, 8] =": "%11: bf16[10, 2, 16, 2, 8] =",
                "%7: bf16[2, 10, 16, 2, 8] =": "%12: bf16[10, 2, 16, 2, 8] =",
                _ROWS: "%4: bf16[2, 10, 16, 2, 8] = permute(%11; dims=[1, 0, 2, 3, 4]) from [7]\n"
                + _ROWS,
                _VALUES: "%7: bf16[2, 10, 16, 2, 8] = permute(%12; dims=[1, 0, 2, 3, 4]) from [8]\n"
                + _VALUES,
            },
        ),
        (
            "pages hold other elements, too, or these in another order",
            {
                _KEYS: "%1: bf16[99, 16, 2, 9]@[288, 18, 9, 1]",
                _TAKE: "%11: bf16[2, 10, 16, 2, 9] = take(%1, %3; dim=0) from [7]\n"
                "%4: bf16[2, 10, 16, 2, 8] = slice(%11; limits=[{2}, {10}, {16}, {2}, {8}],"
                " starts=[{0}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}])",
            },
        ),
        (
            "rows of the cache have gaps in memory",
            {_KEYS: "%1: bf16[99, 16, 2, 8]@[256, 1, 128, 16]"},
        ),
        (
            "pages of keys and of values have other sizes",
            {
                _KEYS: "%1: bf16[99, 32, 2, 8]@[512, 16, 8, 1]",
                "%3: i32[2, 10]": '%11: i32[2, 5]@[5, 1] = input "half"\n%3: i32[2, 10]',
                _TAKE: "%4: bf16[2, 5, 32, 2, 8] = take(%1, %11; dim=0)",
            },
        ),
    ],
)
def test_pages_that_are_no_rows_of_a_cache_alone_are_copied(
    reason: str, changes: dict[str, str]
) -> None:
    graph = PAGES
    for old, new in changes.items():
        assert graph.count(old) == 1
        graph = graph.replace(old, new)
    verify_graph(parse_graph(graph))
    assert choose_attention(parse_graph(graph), target_facts("cuda:sm_90a")).notes == (
        "attention: 1 of one query, keys in 1 parts, by kernels",
        f"attention: 1 whose pages are copied: {reason}",
    )


MANY = (
    PAGES.replace("[2, 4, 1, 8]@[32, 8, 8, 1]", "[2, 4, 70, 8]@[2240, 560, 8, 1]")
    .replace("[2, 4, 1, 8]@[32, 8, 32, 1]", "[2, 4, 70, 8]@[2240, 8, 32, 1]")
    .replace(", 8]", ", 64]")
    .replace("{8}", "{64}")
    .replace("@[256, 16, 8, 1]", "@[2048, 128, 64, 1]")
    .replace("@[2240, 560, 8, 1]", "@[17920, 4480, 64, 1]")
    .replace("@[2240, 8, 32, 1]", "@[17920, 64, 256, 1]")
)


@pytest.mark.golden
def test_gpus_read_pages_where_they_are_for_many_queries() -> None:
    assert_golden(
        before_and_after("choose-attention", MANY, "cuda:sm_90a").partition("-- after")[2],
        """\
: attention
by kernels: %10
attention: 1 of several queries, keys in pages, by kernels
""",
    )


@pytest.mark.parametrize("queries", [128, 129])
def test_pages_of_few_rows_are_copied_where_a_kernel_of_chunks_makes_up_for_it(
    queries: int,
) -> None:
    few = MANY.replace("16, 2, 64", "8, 2, 64").replace("{16}, {2}", "{8}, {2}")
    few = few.replace("{160}", "{80}").replace("160", "80").replace("[2048,", "[1024,")
    few = few.replace("4, 70, 64]", f"4, {queries}, 64]")
    few = few.replace("17920, 4480", f"{queries * 256}, {queries * 64}").replace(
        "17920", str(queries * 256)
    )
    verify_graph(parse_graph(few))
    found = choose_attention(parse_graph(few), target_facts("cuda:sm_90a"))
    is_copied = queries == 129  # times two heads that share one of keys: more than 256
    assert len(found.pages) == (not is_copied)
    copied = (
        "attention: 1 of several queries by kernels",
        "attention: 1 whose pages are copied: chunks of 16 rows do not divide a page and the keys,"
        " and more than 256 queries share a head of keys",
    )
    own = ("attention: 1 of several queries, keys in pages, by kernels",)
    assert found.notes == (copied if is_copied else own)


def test_pages_of_attention_by_the_framework_are_copied() -> None:
    found = choose_attention(parse_graph(PAGES.replace("bf16", "f32")), target_facts("cuda:sm_90a"))
    reason = "of f32, for which kernels were not timed"
    assert found.notes == (
        f"attention: 1 whose pages are copied: attention {reason}",
        f"attention: 1 by the framework: {reason}",
    )


def test_many_heads_of_keys_in_pages_are_read_where_they_are() -> None:
    """Without pages, the framework's kernels fill the chip as well."""
    many = PAGES.replace("[2, ", "[130, ").replace("{2}, {160}", "{130}, {160}")
    found = choose_attention(parse_graph(many), target_facts("cuda:sm_90a"))
    assert found.notes == ("attention: 1 of one query, keys in 1 parts, in pages, by kernels",)


BIAS = """\
graph prims 1
%0: bf16[24, 4, 64, 32]@[8192, 2048, 32, 1] = input "queries"
%1: f32[24, 4, 64]@[256, 64, 1] = input "sums"
%2: bf16[24, 2, 64, 32]@[4096, 2048, 32, 1] = input "keys"
%3: bf16[4, 64, 64]@[4096, 64, 1] = input "bias"
%10: bf16[24, 4, 64, 32]@[8192, 2048, 32, 1], %11: bf16[24, 2, 64, 32]@[4096, 2048, 32, 1], %12: bf16[24, 2, 64, 32]@[4096, 2048, 32, 1], %13: bf16[4, 64, 64]@[4096, 64, 1] = extern(%0, %0, %1, %0, %2, %2, %3; is_contraction=true, node=0, op="kernelfarm.attention_backward.default", scale=0.5) from [0]
return %10: bf16[24, 4, 64, 32]@[8192, 2048, 32, 1], %13: bf16[4, 64, 64]@[4096, 64, 1]
"""


@pytest.mark.golden
def test_gpus_compute_the_gradient_of_a_mask() -> None:
    assert_golden(
        before_and_after("choose-attention", BIAS, "cuda:sm_90a").partition("-- after")[2],
        """\
: attention
by kernels: %10
attention: 1 of gradients, also of a mask, by kernels
""",
    )


@pytest.mark.parametrize(
    ("batch", "parts"), [("1", 1), ("7", 1), ("8", 2), ("256", 64), ("2048", 132), ("n", 2)]
)
def test_programs_for_the_gradient_of_a_mask_fill_the_chip(batch: str, parts: int) -> None:
    """Four tiles of the mask have one tile of scores for each sequence."""
    text = BIAS.replace("[24, ", f"[{batch}, ").replace(
        "prims 1\n", "prims 1\nsize n from 2 to 99\n"
    )
    found = choose_attention(parse_graph(text), target_facts("cuda:sm_90a"))
    assert found.mask_parts == {10: parts}


def test_masks_of_varying_sizes_are_summed_whole() -> None:
    """Their tiles are usually many, and memory would hold as many masks as there are parts."""
    text = BIAS.replace("[24, ", "[2048, ").replace("2, 64, 32]", "2, n, 32]")
    text = text.replace("[4, 64, 64]", "[4, 64, n]").replace(
        "prims 1\n", "prims 1\nsize n from 1\n"
    )
    found = choose_attention(parse_graph(text), target_facts("cuda:sm_90a"))
    assert found.mask_parts == {10: 1}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(%0, %0, %1, %0, %2, %2, %3;", "(%0, %0, %1, %0, %2, %2;", "other operands"),
        ("%13: bf16[4, 64, 64]", "%13: bf16[64, 4, 64]", "other operands"),
        ("; is_con", "; is_causal=true, is_con", "a mask has gradients beside a causal one"),
        ("bf16[4, 64, 64]", "bf16[4, 64, 1]", "a mask that is one for all keys has gradients"),
    ],
)
def test_gradients_with_another_mask_s_are_the_framework_s(old: str, new: str, reason: str) -> None:
    found = choose_attention(parse_graph(BIAS.replace(old, new)), target_facts("cuda:sm_90a"))
    assert not found.results
    assert found.notes == (f"attention: 1 of gradients by the framework: {reason}",)


def test_gradients_of_few_queries_with_a_mask_s_are_the_framework_s() -> None:
    few = BIAS.replace("[8192, 2048, 32, 1]", "[8064, 2016, 32, 1]").replace(
        "4, 64, 64]", "4, 63, 64]"
    )
    few = few.replace("24, 4, 64", "24, 4, 63").replace("[256, 64, 1]", "[252, 63, 1]")
    few = few.replace("[4096, 64, 1]", "[4032, 64, 1]")
    found = choose_attention(parse_graph(few), target_facts("cuda:sm_90a"))
    assert not found.results
    (note,) = found.notes
    assert note.endswith(": a mask has gradients, of fewer than 64 queries or keys")
