"""Padded rows of products: which values get gaps, which are copied, and which stay as they are."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.ir.layouts import Layouts
from optimizer_svc.passes.align_rows import align_rows
from optimizer_svc.passes.assign_layouts import assign_layouts
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import sizes

GPU = "cuda:sm_90a"

# Logits over 1,001 words, a kernel, and the gradient of the weight.
VOCABULARY = """\
graph prims 1
%0: bf16[512, 256]@[256, 1] = input "x"
%1: bf16[256, 1001]@[1, 256] = input "w"
%2: bf16[512, 1001]@[1001, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
%3: bf16[512, 1001] = exp(%2)
%4: bf16[1001, 512] = permute(%3; dims=[1, 0])
%5: bf16[1001, 256]@[256, 1] = extern(%4, %0; is_contraction=true, node=1, op="aten.mm.default")
return %5: bf16[1001, 256]@[256, 1]
"""


@pytest.mark.golden
def test_values_that_the_program_makes_are_padded_at_no_cost() -> None:
    assert_golden(
        before_and_after("align-rows", VOCABULARY, GPU),
        """\
-- before align-rows: graph
graph prims 1
%0: bf16[512, 256]@[256, 1] = input "x"
%1: bf16[256, 1001]@[1, 256] = input "w"
%2: bf16[512, 1001]@[1001, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
%3: bf16[512, 1001] = exp(%2)
%4: bf16[1001, 512] = permute(%3; dims=[1, 0])
%5: bf16[1001, 256]@[256, 1] = extern(%4, %0; is_contraction=true, node=1, op="aten.mm.default")
return %5: bf16[1001, 256]@[256, 1]
-- after: layouts
strides %2: [1008, 1]
strides %3: [1008, 1]
note: rows of aten.mm.default (node 0): padded; aligned rows save as much as 5248123 bytes from memory in the framework; copies move 0
note: rows of aten.mm.default (node 1): padded; aligned rows save as much as 5248123 bytes from memory in the framework; copies move 0
""",
    )


@pytest.mark.golden
def test_a_returned_result_is_copied_out_of_padded_rows() -> None:
    returned = VOCABULARY.replace(
        "return %5: bf16[1001, 256]@[256, 1]", "return %2: bf16[512, 1001]@[1001, 1]"
    )
    assert_golden(
        before_and_after("align-rows", returned, GPU),
        """\
-- before align-rows: graph
graph prims 1
%0: bf16[512, 256]@[256, 1] = input "x"
%1: bf16[256, 1001]@[1, 256] = input "w"
%2: bf16[512, 1001]@[1001, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
%3: bf16[512, 1001] = exp(%2)
%4: bf16[1001, 512] = permute(%3; dims=[1, 0])
%5: bf16[1001, 256]@[256, 1] = extern(%4, %0; is_contraction=true, node=1, op="aten.mm.default")
return %2: bf16[512, 1001]@[1001, 1]
-- after: layouts
strides %2: [1008, 1]
strides %3: [1008, 1]
note: rows of aten.mm.default (node 0): padded; aligned rows save as much as 5248123 bytes from memory in the framework; copies move 2050048
note: rows of aten.mm.default (node 1): padded; aligned rows save as much as 5248123 bytes from memory in the framework; copies move 0
""",
    )


def test_an_input_of_odd_rows_is_copied_once_for_two_products() -> None:
    text = """\
graph prims 1
%0: bf16[512, 1001]@[1001, 1] = input "g"
%1: bf16[1001, 256]@[256, 1] = input "w"
%2: bf16[512, 256]@[256, 1] = input "x"
%3: bf16[512, 256]@[256, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
%4: bf16[1001, 512] = permute(%0; dims=[1, 0])
%5: bf16[1001, 256]@[256, 1] = extern(%4, %2; is_contraction=true, node=1, op="aten.mm.default")
return %3: bf16[512, 256]@[256, 1], %5: bf16[1001, 256]@[256, 1]
"""
    found = _aligned(text)
    assert dict(found.copies) == {(0, 0): sizes(1008, 1), (2, 0): sizes(1, 1008)}
    graph = assign_layouts(parse_graph(text), found)
    assert [node.op for node in graph.nodes].count("convert") == 1


def test_a_copy_that_moves_more_than_it_saves_is_not_made() -> None:
    found = _aligned("""\
graph prims 1
%0: bf16[4096, 1001]@[1001, 1] = input "g"
%1: bf16[1001, 8]@[8, 1] = input "w"
%2: bf16[4096, 8]@[8, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.mm.default")
return %2: bf16[4096, 8]@[8, 1]
""")
    assert not found.copies and not found.strides
    assert "as they are" in found.notes[0]


def test_a_value_that_another_operator_reads_keeps_its_rows() -> None:
    read = VOCABULARY.replace(
        "%3: bf16[512, 1001] = exp(%2)",
        '%9: bf16[512, 1001]@[1001, 1] = extern(%2; node=7, op="aten._fft_c2r.default")\n'
        "%3: bf16[512, 1001] = exp(%9)",
    )
    assert _aligned(read).strides.keys() == {3}


@pytest.mark.parametrize(
    "text",
    [
        VOCABULARY.replace("1001", "1008"),
        VOCABULARY.replace("bf16", "f32"),
        VOCABULARY.replace("1001", "9"),
    ],
    ids=["aligned rows", "wide elements", "short rows"],
)
def test_other_products_change_nothing(text: str) -> None:
    layouts = Layouts({}, {})
    assert align_rows(parse_graph(text), layouts, target_facts(GPU)) is layouts


def test_without_facts_nothing_changes() -> None:
    layouts = Layouts({}, {})
    found = align_rows(parse_graph(VOCABULARY), layouts, target_facts("rocm:gfx942"))
    assert found is layouts


def _aligned(text: str) -> Layouts:
    return align_rows(parse_graph(text), Layouts({}, {}), target_facts(GPU))
