"""Which depthwise convolutions kernels compute; `test_depthwise_template.py` tests their results."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.choose_depthwise import choose_depthwise
from tests.support.contraction_programs import DEPTHWISE
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

H200 = "cuda:sm_90a"
AMD = "cpu:x86-64-v3-amd"


@pytest.mark.golden
def test_a_template_computes_images_whose_channels_are_last() -> None:
    assert_golden(
        before_and_after("choose-depthwise", DEPTHWISE, H200),
        """\
-- before choose-depthwise: graph
graph prims 1
%0: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%1: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%2: bf16[32]@[1] = input "b"
%3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default", window=[2, 2, 1, 1, 1, 1, 32]) from [0]
return %3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32]
-- after: depthwise
by kernels: %0 -> %3
convolutions: 1 depthwise by template kernels
""",
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("bf16", "f64", "of f64, for which kernels were not timed"),
        ("bf16", "f32", "of f32 with a window of fewer than 25 pixels"),
        ("1, 1, 32])", "2, 2, 32])", None),
        ("[32, 1, 3, 3]@[9, 9, 3, 1]", "[32, 1, 8, 8]@[64, 64, 8, 1]", None),
        (
            "[2, 32, 5, 7]@[1120, 1, 224, 32]",
            "[2, 32, 5, 7]@[1120, 35, 7, 1]",
            "of images whose channels are first in memory",
        ),
        ("1, 1, 32])", "1, 1, 1])", None),
        ("%2: bf16[32]", "%2: bf16[8]", None),
        ("[2, 32, 5, 7]@[1120, 1, 224, 32]", "[2, 32, 4, 7]@[896, 1, 224, 32]", None),
    ],
)
def test_other_convolutions_are_the_framework_s(old: str, new: str, reason: str | None) -> None:
    found = choose_depthwise(parse_graph(DEPTHWISE.replace(old, new)), target_facts(H200))
    assert not found.results
    stated = () if reason is None else (f"convolutions: 1 depthwise by the framework: {reason}",)
    assert found.notes == stated


@pytest.mark.parametrize(
    ("sides", "padding", "reason"),
    [
        ((7, 7), (3, 3), None),
        ((8, 8), (4, 4), "with a window of more than 49 pixels"),
        ((1, 49), (0, 24), None),
    ],
)
def test_windows_have_a_limited_size(
    sides: tuple[int, int], padding: tuple[int, int], reason: str | None
) -> None:
    down, across = sides
    height, width = (
        (n + 2 * p - s) // 2 + 1 for n, p, s in zip((9, 14), padding, sides, strict=True)
    )
    text = DEPTHWISE.replace("[2, 2, 1, 1,", f"[2, 2, {padding[0]}, {padding[1]},")
    text = text.replace(
        "[32, 1, 3, 3]@[9, 9, 3, 1]",
        f"[32, 1, {down}, {across}]@[{down * across}, {down * across}, {across}, 1]",
    )
    shape = f"[2, 32, {height}, {width}]@[{32 * height * width}, 1, {32 * width}, 32]"
    found = choose_depthwise(
        parse_graph(text.replace("[2, 32, 5, 7]@[1120, 1, 224, 32]", shape)), target_facts(H200)
    )
    assert bool(found.results) is (reason is None)
    if reason is not None:
        assert found.notes == (f"convolutions: 1 depthwise by the framework: {reason}",)


def test_few_channels_are_the_framework_s() -> None:
    text = DEPTHWISE.replace("32", "8").replace("4482", "448")
    text = text.replace("@[4032, 1, 448, 8]", "@[1008, 1, 112, 8]")
    text = text.replace("@[1120, 1, 224, 8]", "@[280, 1, 56, 8]")
    found = choose_depthwise(parse_graph(text), target_facts(H200))
    assert found.notes == ("convolutions: 1 depthwise by the framework: of fewer than 16 channels",)


def test_a_target_without_facts_has_none() -> None:
    assert not choose_depthwise(parse_graph(DEPTHWISE), target_facts("cuda:sm_80")).results


@pytest.mark.golden
def test_prims_compute_those_of_a_processor_from_16_bits() -> None:
    assert_golden(
        before_and_after("choose-depthwise", DEPTHWISE, AMD),
        """\
-- before choose-depthwise: graph
graph prims 1
%0: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%1: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%2: bf16[32]@[1] = input "b"
%4: f32[2, 32, 9, 14]@[4032, 1, 448, 32] = convert(%0; dtype=f32) from [0]
%5: f32[32, 1, 3, 3] = convert(%1; dtype=f32) from [0]
%6: f32[32] = convert(%2; dtype=f32) from [0]
%7: f32[2, 32, 5, 7]@[1120, 1, 224, 32] = extern(%4, %5, %6; is_contraction=true, node=0, op="aten.convolution.default", window=[2, 2, 1, 1, 1, 1, 32]) from [0]
%3: bf16[2, 32, 5, 7] = convert(%7; dtype=bf16) from [0]
return %3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32]
-- after: depthwise
by kernels: %0 -> %7
convolutions: 1 depthwise by kernels
""",
    )


WIDE = DEPTHWISE.replace("bf16", "f32")


def test_a_weight_whose_channels_are_adjacent_is_read_where_it_is() -> None:
    plain = choose_depthwise(parse_graph(WIDE), target_facts(AMD))
    text = WIDE.replace("[32, 1, 3, 3]@[9, 9, 3, 1]", "[32, 1, 3, 3]@[1, 1, 96, 32]")
    ordered = choose_depthwise(parse_graph(text), target_facts(AMD))
    assert plain.weights == ordered.weights
    assert [*plain.strides] == [*plain.weights.values()]
    assert not ordered.strides


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("f32", "f64", "of f64, for which kernels were not timed"),
        (
            "[2, 32, 5, 7]@[1120, 1, 224, 32]",
            "[2, 32, 5, 7]@[1120, 35, 7, 1]",
            "of images whose channels are first in memory",
        ),
        (
            "[2, 32, 9, 14]@[4032, 1, 448, 32]",
            "[2, 32, 9, 14]@[4032, 126, 14, 1]",
            "of images whose channels are first in memory",
        ),
        ("1, 1, 32])", "1, 1, 1])", None),
    ],
)
def test_others_are_the_library_s(old: str, new: str, reason: str | None) -> None:
    found = choose_depthwise(parse_graph(WIDE.replace(old, new)), target_facts(AMD))
    assert not found.results
    stated = () if reason is None else (f"convolutions: 1 depthwise by the framework: {reason}",)
    assert found.notes == stated


GRADIENTS = """\
graph prims 1
%0: bf16[2, 32, 5, 7]@[1120, 1, 224, 32] = input "gradient"
%1: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%2: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%3: bf16[2, 32, 9, 14]@[4032, 1, 448, 32], %4: bf16[32, 1, 3, 3]@[9, 9, 3, 1], \
%5: bf16[32]@[1] = extern(%0, %1, %2; is_contraction=true, node=0, \
op="aten.convolution_backward.default", window=[2, 2, 1, 1, 1, 1, 32]) from [0]
return %3: bf16[2, 32, 9, 14]@[4032, 1, 448, 32], %4: bf16[32, 1, 3, 3]@[9, 9, 3, 1]
"""


def test_gradients_are_by_templates_with_programs_that_divide_the_pixels() -> None:
    found = choose_depthwise(parse_graph(GRADIENTS), target_facts(H200))
    assert found.results == {3}
    assert found.parts == {3: 1}
    assert found.notes == ("convolutions: 1 gradients of depthwise ones by template kernels",)
    larger = GRADIENTS.replace("[2, 32,", "[512, 32,")
    assert choose_depthwise(parse_graph(larger), target_facts(H200)).parts == {3: 80}


def test_gradients_without_one_of_a_bias_are_by_templates() -> None:
    text = GRADIENTS.replace("%5: bf16[32]@[1]", "%5: f32[]@[]")
    assert choose_depthwise(parse_graph(text), target_facts(H200)).results == {3}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%3: bf16[2, 32, 9, 14]@[4032, 1, 448, 32], %4", "%3: f32[]@[], %4"),  # of a first layer
        ("%4: bf16[32, 1, 3, 3]@[9, 9, 3, 1], %5", "%4: f32[]@[], %5"),
        ("1, 1, 32])", "2, 2, 32])"),
        ("%2;", "%2, %2;"),
    ],
)
def test_other_gradients_are_the_framework_s(old: str, new: str) -> None:
    text = GRADIENTS.replace("return %3: bf16[2, 32, 9, 14]@[4032, 1, 448, 32], ", "return ")
    found = choose_depthwise(parse_graph(text.replace(old, new)), target_facts(H200))
    assert not found.results


def test_a_result_without_a_bias_that_is_read_is_the_framework_s() -> None:
    text = GRADIENTS.replace("%5: bf16[32]@[1]", "%5: f32[]@[]")
    text = text.replace("[9, 9, 3, 1]\n", "[9, 9, 3, 1], %5: f32[]@[]\n")
    assert not choose_depthwise(parse_graph(text), target_facts(H200)).results


def test_gradients_with_long_strides_are_the_framework_s() -> None:
    """Their tiles would have as many pixels as a stride, which may be any number."""
    text = GRADIENTS.replace("window=[2, 2,", "window=[1000000000, 1000000000,")
    text = text.replace("[2, 32, 5, 7]@[1120, 1, 224, 32]", "[2, 32, 1, 1]@[32, 1, 32, 32]")
    found = choose_depthwise(parse_graph(text), target_facts(H200))
    assert not found.results
    assert found.notes == (
        "convolutions: 1 gradients of depthwise ones by the framework: with a stride of more than 8"
        " pixels",
    )
