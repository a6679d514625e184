"""Which convolutions of Winograd's algorithm are kernels, and what the report says of others.

`test_compute_winograd.py` has their results.
"""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.choose_winograd import choose_winograd
from tests.support.contraction_programs import WINOGRAD
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

AVX2 = "cpu:x86-64-v3-amd"
PACKED = """\
graph prims 1
%0: f32[1, 64, 14, 14]@[12544, 1, 896, 64] = input "x"
%1: f32[64, 64, 3, 3]@[576, 9, 3, 1] = input "w"
%2: f32[1, 64, 14, 14]@[12544, 1, 896, 64] = extern(%0, %1; is_contraction=true, node=0, op="mkldnn._convolution_pointwise.default", window=[1, 1, 1, 1, 1, 1, 1]) from [0]
return %2: f32[1, 64, 14, 14]@[12544, 1, 896, 64]
"""


@pytest.mark.golden
def test_a_convolution_has_values_in_memory() -> None:
    assert_golden(
        before_and_after("choose-winograd", WINOGRAD, AVX2),
        """\
-- before choose-winograd: graph
graph prims 1
%0: f32[1, 8, 5, 3]@[120, 1, 24, 8] = input "x"
%1: f32[16, 1, 8, 16]@[128, 128, 16, 1] = input "w"
%2: f32[9]@[1] = input "b"
%3: f32[1, 9, 5, 3]@[135, 1, 27, 9] = extern(%0, %1, %2; is_contraction=true, node=0, op="kernelfarm.winograd_convolution.default") from [0]
return %3: f32[1, 9, 5, 3]@[135, 1, 27, 9]
-- after: winograd
by kernels: %0 -> %3
convolutions: 1 by Winograd's algorithm
""",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32", "f64"),
        ("16, 1, 8, 16]", "16, 1, 8, 8]"),
        ("16, 1, 8, 16]", "15, 1, 8, 16]"),
        ("16, 1, 8, 16]", "16, 1, 7, 16]"),
        ('%2: f32[9]@[1] = input "b"', '%2: f32[8]@[1] = input "b"'),
        ("9, 5, 3]@", "9, 4, 3]@"),
        ("9, 5, 3]@", "9, 7, 5]@"),
    ],
)
def test_other_operands_are_left_to_the_framework(old: str, new: str) -> None:
    found = choose_winograd(parse_graph(WINOGRAD.replace(old, new)), target_facts(AVX2))
    assert not found.results
    text = "convolutions: 1 by Winograd's algorithm by the framework: of other operands"
    assert found.notes == (text,)


def test_a_target_whose_tiles_have_another_width_leaves_it_to_the_framework() -> None:
    """A v4 target has panels of as many columns for 9, but not for 40 of them."""
    text = WINOGRAD.replace("f32[9]", "f32[40]").replace("[1, 9, ", "[1, 40, ")
    text = text.replace("16, 1, 8, 16]", "16, 5, 8, 8]")
    assert choose_winograd(parse_graph(text), target_facts(AVX2)).results
    assert not choose_winograd(parse_graph(text), target_facts("cpu:x86-64-v4-amd")).results
    assert not choose_winograd(parse_graph(text), target_facts("cuda:sm_90a")).results


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("1, 1, 1, 1, 1, 1, 1]", "2, 2, 1, 1, 1, 1, 1]", "with strides or dilations"),
        ("1, 1, 1, 1, 1, 1, 1]", "1, 1, 2, 2, 2, 2, 1]", "with strides or dilations"),
        ("1, 1, 1, 1, 1, 1, 1]", "1, 1, 1, 0, 1, 1, 1]", "with other padding than 0 or 1"),
        ("[64, 64, 3, 3]", "[64, 64, 5, 5]", "with windows of other sizes, or groups"),
        ("[64, 64, 3, 3]", "[64, 64, 1, 1]", "with windows of other sizes, or groups"),
        ("f32", "bf16", "of bf16, for which kernels were not timed"),
        ("[64, 64, 3, 3]", "[8, 64, 3, 3]", "of fewer than 16 channels"),
    ],
)
def test_the_report_says_why_a_client_packed_a_convolution(old: str, new: str, reason: str) -> None:
    found = choose_winograd(parse_graph(PACKED.replace(old, new)), target_facts(AVX2))
    text = f"convolutions: 1 packed, not by Winograd's algorithm: {reason}"
    assert found.notes == (text,)


def test_the_report_says_nothing_about_targets_that_were_not_measured() -> None:
    assert not choose_winograd(parse_graph(PACKED), target_facts("cpu:x86-64-v4-amd")).notes
