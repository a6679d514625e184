"""Padded products: which operands and results get zeros, and which products stay as they are."""

from __future__ import annotations

import pytest

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.pad_products import pad_products
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

GPU = "cuda:sm_90a"

# Logits over 1,001 words, a kernel, and the gradients of the weight and of the operand.
VOCABULARY = """\
graph prims 1
%0: bf16[512, 256]@[256, 1] = input "x"
%1: bf16[1001, 256]@[256, 1] = input "w"
%2: bf16[256, 1001] = permute(%1; dims=[1, 0])
%3: bf16[512, 1001]@[1001, 1] = extern(%0, %2; is_contraction=true, node=0, op="aten.mm.default")
%4: bf16[512, 1001] = exp(%3)
%5: bf16[1001, 512] = permute(%4; dims=[1, 0])
%6: bf16[1001, 256]@[256, 1] = extern(%5, %0; is_contraction=true, node=1, op="aten.mm.default")
%7: bf16[512, 256]@[256, 1] = extern(%4, %1; is_contraction=true, node=2, op="aten.mm.default")
return %6: bf16[1001, 256]@[256, 1], %7: bf16[512, 256]@[256, 1]
"""


@pytest.mark.golden
def test_products_over_a_vocabulary_of_odd_size_are_padded() -> None:
    assert_golden(
        before_and_after("pad-products", VOCABULARY, GPU),
        """\
-- before pad-products: graph
graph prims 1
%0: bf16[512, 256]@[256, 1] = input "x"
%1: bf16[1001, 256]@[256, 1] = input "w"
%2: bf16[256, 1001] = permute(%1; dims=[1, 0])
%3: bf16[512, 1001]@[1001, 1] = extern(%0, %2; is_contraction=true, node=0, op="aten.mm.default")
%4: bf16[512, 1001] = exp(%3)
%5: bf16[1001, 512] = permute(%4; dims=[1, 0])
%6: bf16[1001, 256]@[256, 1] = extern(%5, %0; is_contraction=true, node=1, op="aten.mm.default")
%7: bf16[512, 256]@[256, 1] = extern(%4, %1; is_contraction=true, node=2, op="aten.mm.default")
return %6: bf16[1001, 256]@[256, 1], %7: bf16[512, 256]@[256, 1]
-- after: graph
graph prims 1
%0: bf16[512, 256]@[256, 1] = input "x"
%1: bf16[1001, 256]@[256, 1] = input "w"
%2: bf16[256, 1001] = permute(%1; dims=[1, 0])
%8: bf16[1008, 256] = pad(%1; high=[{7}, {0}], low=[{0}, {0}], value=0.0)
%9: bf16[256, 1008] = permute(%8; dims=[1, 0])
%10: bf16[512, 1008]@[1008, 1] = extern(%0, %9; is_contraction=true, node=0, op="aten.mm.default")
%3: bf16[512, 1001] = slice(%10; limits=[{512}, {1001}], starts=[{0}, {0}], steps=[{1}, {1}])
%4: bf16[512, 1001] = exp(%3)
%5: bf16[1001, 512] = permute(%4; dims=[1, 0])
%11: bf16[512, 1008] = pad(%4; high=[{0}, {7}], low=[{0}, {0}], value=0.0)
%12: bf16[1008, 512] = permute(%11; dims=[1, 0])
%13: bf16[1008, 256]@[256, 1] = extern(%12, %0; is_contraction=true, node=1, op="aten.mm.default")
%6: bf16[1001, 256] = slice(%13; limits=[{1001}, {256}], starts=[{0}, {0}], steps=[{1}, {1}])
%7: bf16[512, 256]@[256, 1] = extern(%11, %8; is_contraction=true, node=2, op="aten.mm.default")
return %6: bf16[1001, 256]@[256, 1], %7: bf16[512, 256]@[256, 1]
""",
    )


@pytest.mark.golden
def test_the_bias_of_a_padded_product_is_padded() -> None:
    biased = """\
graph prims 1
%0: bf16[1001]@[1] = input "bias"
%1: bf16[512, 256]@[256, 1] = input "x"
%2: bf16[256, 1001]@[1, 256] = input "w"
%3: bf16[512, 1001]@[1001, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.addmm.default")
return %3: bf16[512, 1001]@[1001, 1]
"""
    assert_golden(
        before_and_after("pad-products", biased, GPU),
        """\
-- before pad-products: graph
graph prims 1
%0: bf16[1001]@[1] = input "bias"
%1: bf16[512, 256]@[256, 1] = input "x"
%2: bf16[256, 1001]@[1, 256] = input "w"
%3: bf16[512, 1001]@[1001, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.addmm.default")
return %3: bf16[512, 1001]@[1001, 1]
-- after: graph
graph prims 1
%0: bf16[1001]@[1] = input "bias"
%1: bf16[512, 256]@[256, 1] = input "x"
%2: bf16[256, 1001]@[1, 256] = input "w"
%4: bf16[256, 1008] = pad(%2; high=[{0}, {7}], low=[{0}, {0}], value=0.0)
%5: bf16[1008] = pad(%0; high=[{7}], low=[{0}], value=0.0)
%6: bf16[512, 1008]@[1008, 1] = extern(%5, %1, %4; is_contraction=true, node=0, op="aten.addmm.default")
%3: bf16[512, 1001] = slice(%6; limits=[{512}, {1001}], starts=[{0}, {0}], steps=[{1}, {1}])
return %3: bf16[512, 1001]@[1001, 1]
""",
    )


def test_an_input_of_odd_rows_is_copied_once_for_two_products() -> None:
    graph = _padded("""\
graph prims 1
%0: bf16[512, 1001]@[1001, 1] = input "g"
%1: bf16[1001, 256]@[256, 1] = input "w"
%2: bf16[512, 256]@[256, 1] = input "x"
%3: bf16[512, 256]@[256, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
%4: bf16[1001, 512] = permute(%0; dims=[1, 0])
%5: bf16[1001, 256]@[256, 1] = extern(%4, %2; is_contraction=true, node=1, op="aten.mm.default")
return %3: bf16[512, 256]@[256, 1], %5: bf16[1001, 256]@[256, 1]
""")
    assert [node.op for node in graph.nodes].count("pad") == 2, "one of %0, and one of %1"


@pytest.mark.parametrize(
    "text",
    [
        VOCABULARY.replace("1001", "1008"),
        VOCABULARY.replace("bf16", "f32"),
        VOCABULARY.replace("1001", "9"),
        """\
graph prims 1
%0: bf16[4096, 1001]@[1001, 1] = input "g"
%1: bf16[1001, 8]@[8, 1] = input "w"
%2: bf16[4096, 8]@[8, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
return %2: bf16[4096, 8]@[8, 1]
""",
    ],
    ids=["whole units", "wide elements", "short rows", "copies that cost more than they save"],
)
def test_other_products_stay_as_they_are(text: str) -> None:
    graph = parse_graph(text)
    assert pad_products(graph, target_facts(GPU)) is graph


def test_without_facts_nothing_changes() -> None:
    graph = parse_graph(VOCABULARY)
    assert pad_products(graph, target_facts("rocm:gfx942")) is graph


def _padded(text: str) -> Graph:
    return pad_products(parse_graph(text), target_facts(GPU))
