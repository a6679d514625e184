"""Which convolutions kernels compute; `test_compute_convolutions.py` tests their results."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.choose_convolutions import choose_convolutions
from tests.support.contraction_programs import ONE_PIXEL, grouped_convolution
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

AMD = "cpu:x86-64-v4-amd"


@pytest.mark.golden
def test_a_window_of_one_pixel_is_by_kernels() -> None:
    assert_golden(
        before_and_after("choose-convolutions", ONE_PIXEL, AMD),
        """\
-- before choose-convolutions: graph
graph prims 1
%0: f32[2, 8, 5, 7]@[280, 1, 56, 8] = input "x"
%1: f32[16, 8, 1, 1]@[8, 1, 1, 1] = input "w"
%2: f32[16]@[1] = input "b"
%3: f32[2, 16, 5, 7]@[560, 1, 112, 16] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default", window=[1, 1, 0, 0, 1, 1, 1]) from [0]
return %3: f32[2, 16, 5, 7]@[560, 1, 112, 16]
-- after: convolutions
by kernels: %0 -> %3
convolutions: 1 of one pixel by kernels
""",
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("window=[1, 1, 0", "window=[2, 2, 2", "with strides or padding"),
        ("window=[1, 1, 0", "window=[1, 1, 1", "with strides or padding"),
        ("1, 1, 1])", "1, 1, 2])", "with a window of several pixels, or of groups"),
        (", window=[1, 1, 0, 0, 1, 1, 1]", "", "of other operands"),
        ("[16, 8, 1, 1]@[8, 1, 1, 1]", "[16, 8, 3, 1]@[24, 3, 1, 1]", "with a window of several"),
        ("f32", "bf16", "of bf16, for which kernels were not timed"),
        ("%2: f32[16]", "%2: f32[8]", "of other operands"),
        ("[16, 8, 1, 1]@[8, 1, 1, 1]", "[16, 9, 1, 1]@[9, 1, 1, 1]", "of other operands"),
        (
            "[2, 16, 5, 7]@[560, 1, 112, 16]",
            "[2, 16, 9, 9]@[1296, 1, 144, 16]",
            "of other operands",
        ),
        ("[2, 16, 5, 7]@[560, 1, 112, 16]", "[2, 16, 5]@[80, 1, 16]", "of other operands"),
    ],
)
def test_other_convolutions_are_the_framework_s(old: str, new: str, reason: str) -> None:
    text = ONE_PIXEL.replace(old, new)
    found = choose_convolutions(parse_graph(text), target_facts(AMD))
    assert not found.results
    assert f"convolutions: 1 by the framework: {reason}" in "\n".join(found.notes)


@pytest.mark.parametrize(("dtype", "is_widened"), [("bf16", True), ("f16", True), ("f32", False)])
def test_types_that_the_library_is_slow_for_are_convolved_in_f32(
    dtype: str, *, is_widened: bool
) -> None:
    text = ONE_PIXEL.replace("f32", dtype).replace("window=[1, 1, 0", "window=[2, 2, 2")
    found = choose_convolutions(parse_graph(text), target_facts("cpu:x86-64-v3-amd"))
    assert found.widened == ({3} if is_widened else set())
    note = f"convolutions: 1 of {dtype} by the framework in f32, which takes it less time"
    assert (note in found.notes) is is_widened
    assert not found.results
    mixed = text.replace(f"%2: {dtype}", "%2: f64")
    found = choose_convolutions(parse_graph(mixed), target_facts("cpu:x86-64-v3-amd"))
    assert not found.widened


@pytest.mark.golden
def test_groups_with_dilation_are_by_kernels() -> None:
    assert_golden(
        before_and_after("choose-convolutions", grouped_convolution(), "cuda:sm_90a"),
        """\
-- before choose-convolutions: graph
graph prims 1
%0: bf16[2, 64, 9, 12]@[6912, 1, 768, 64] = input "x"
%1: bf16[64, 32, 3, 3]@[288, 9, 3, 1] = input "w"
%2: bf16[2, 64, 5, 5]@[1600, 1, 320, 64] = extern(%0, %1; is_contraction=true, node=0, op="aten.convolution.default", window=[2, 2, 2, 1, 2, 2, 2]) from [0]
%3: bf16[2, 64, 5, 5] = abs(%2) from [1]
return %3: bf16[2, 64, 5, 5]@[1600, 1, 320, 64]
-- after: convolutions
by kernels: %0 -> %2
convolutions: 1 by a window by kernels
""",
    )


@pytest.mark.parametrize(
    ("window", "weight", "reason"),
    [
        ("[2, 2, 2, 1, 2, 2, 8]", "64, 8", "of groups, whose channels or results are no multiples"),
        ("[2, 2, 2, 1, 2, 2, 4]", "64, 16", "of groups of fewer than 32 channels or results"),
        ("[2, 2, 2, 1, 2, 2, 1]", "64, 32", "of other operands"),
        ("[2, 2, 2, 1, 2, 2, 3]", "64, 32", "of other operands"),
        ("[2, 2, 2, 1, 2, 2, 0]", "64, 32", "of other operands"),
        ("[2, 2, 2, 1, 0, 2, 2]", "64, 32", "of other operands"),
        ("[2, 2, 2, 1, 2, 3, 2]", "64, 32", "of other operands"),
        ("[2, 2, 2, 1, 4294967295, 2, 2]", "64, 32", "of other operands"),
        ("[2, 2, 5, 1, 2, 2, 2]", "64, 32", "of other operands"),
    ],
)
def test_windows_that_do_not_fit_are_the_framework_s(window: str, weight: str, reason: str) -> None:
    """What a graph states comes from outside: nothing of it is taken on trust."""
    found = choose_convolutions(
        parse_graph(grouped_convolution(window, weight)), target_facts("cuda:sm_90a")
    )
    assert not found.images
    assert f"convolutions: 1 by the framework: {reason}" in "\n".join(found.notes)


def test_few_channels_are_the_framework_s() -> None:
    few = ONE_PIXEL.replace("[16, 8, 1, 1]@[8, 1, 1, 1]", "[16, 7, 1, 1]@[7, 1, 1, 1]").replace(
        "[2, 8, 5, 7]@[280, 1, 56, 8]", "[2, 7, 5, 7]@[245, 1, 49, 7]"
    )
    found = choose_convolutions(parse_graph(few), target_facts(AMD))
    assert found.notes == (
        "convolutions: 1 by the framework: of fewer than 8 channels, or a varying number",
    )


def test_targets_that_were_not_measured_leave_convolutions_to_the_framework() -> None:
    assert not choose_convolutions(parse_graph(ONE_PIXEL), target_facts("cpu:x86-64-v4")).images
    assert not choose_convolutions(parse_graph(ONE_PIXEL), target_facts("cuda:sm_90a")).images
