"""The layouts of images: what the cost model chooses, and what may not be chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.layouts import Layouts
from optimizer_svc.passes.choose_layouts import choose_layouts
from tests.support.goldens import assert_golden
from tests.support.image_graphs import GPU, TWO_CONVOLUTIONS
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import sizes


@pytest.mark.golden
def test_values_between_convolutions_are_channels_last_on_tensor_cores() -> None:
    assert_golden(
        before_and_after("choose-layouts", TWO_CONVOLUTIONS, GPU),
        """\
-- before choose-layouts: graph
graph prims 1
%0: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = input "x"
%1: f16[16, 8, 3, 3]@[72, 9, 3, 1] = input "w"
%2: f16[8, 16, 1, 1]@[16, 1, 1, 1] = input "v"
%3: f16[2, 16, 16, 16]@[4096, 256, 16, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.convolution.default")
%4: f16[2, 16, 16, 16] = tanh(%3)
%5: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = extern(%4, %2; is_contraction=true, node=1, op="aten.convolution.default")
%6: f16[2, 8, 16, 16] = exp(%5)
return %6: f16[2, 8, 16, 16]@[2048, 256, 16, 1]
-- after: layouts
strides %3: [4096, 1, 256, 16]
strides %4: [4096, 1, 256, 16]
strides %5: [2048, 1, 128, 8]
copy operand 0 of node 0: [2048, 1, 128, 8]
copy operand 1 of node 0: [72, 1, 24, 8]
note: layout of aten.convolution.default (node 0): channels last; channels last saves as much as 53760 bytes from memory in the framework, and costs 0; copies of operands move 20992
note: layout of aten.convolution.default (node 1): channels last; channels last saves as much as 49152 bytes from memory in the framework, and costs 0; copies of operands move 0
""",
    )


def test_the_last_kernel_stores_the_layout_of_the_output() -> None:
    assert _chosen(TWO_CONVOLUTIONS).strides[5] == sizes(2048, 1, 128, 8)
    assert 6 not in _chosen(TWO_CONVOLUTIONS).strides


def test_a_small_convolution_on_a_processor_keeps_its_layout() -> None:
    wide = TWO_CONVOLUTIONS.replace("f16", "f32").replace("[2, ", "[1, ")
    found = _chosen(wide, "cpu:x86-64-v4")
    assert not found.copies
    assert found.strides[3] == sizes(4096, 256, 16, 1)


def test_without_facts_a_convolution_keeps_the_layout_of_eager() -> None:
    found = _chosen(TWO_CONVOLUTIONS, "rocm:gfx942")
    assert not found.copies
    assert found.strides[3] == sizes(4096, 256, 16, 1)


def test_channels_last_inputs_make_channels_last_programs_without_facts() -> None:
    last = TWO_CONVOLUTIONS.replace("[2048, 256, 16, 1]", "[2048, 1, 128, 8]")
    found = _chosen(last.replace("[4096, 256, 16, 1]", "[4096, 1, 256, 16]"), "rocm:gfx942")
    assert found.strides[3] == found.strides[4] == sizes(4096, 1, 256, 16)


def test_an_image_of_one_channel_decides_nothing() -> None:
    """Its strides are both layouts, so that they do not state which one the framework should give."""
    lone = TWO_CONVOLUTIONS.replace("[2, 8, 16, 16]@[2048, 256", "[2, 1, 16, 16]@[256, 256", 1)
    lone = lone.replace("[16, 8, 3, 3]@[72,", "[16, 1, 3, 3]@[9,")
    assert _chosen(lone).strides[3] == sizes(4096, 256, 16, 1)


def test_weights_whose_strides_look_channels_last_make_the_result_so() -> None:
    grouped = TWO_CONVOLUTIONS.replace("[16, 8, 3, 3]@[72, 9, 3, 1]", "[16, 1, 3, 3]@[9, 1, 3, 1]")
    found = _chosen(grouped.replace("[2, 8, 16, 16]@[2048, 256", "[2, 1, 16, 16]@[256, 256", 1))
    assert found.strides[3] == sizes(4096, 1, 256, 16)


def test_packed_weights_make_images_channels_last_and_are_never_copied() -> None:
    packed = TWO_CONVOLUTIONS.replace("aten.convolution", "mkldnn._convolution_pointwise")
    for target in ("cpu:x86-64-v4", "rocm:gfx942"):
        found = _chosen(packed, target)
        assert found.strides[3] == found.strides[4] == sizes(4096, 1, 256, 16)
        assert found.strides[5] == sizes(2048, 1, 128, 8)
        assert {*found.copies} == {(0, 0)}  # the program's input
    summed = packed.replace("extern(%4, %2;", "extern(%4, %0, %2;")
    summed = summed.replace(
        '1, op="mkldnn._convolution_pointwise.default',
        '1, op="mkldnn._convolution_pointwise.binary',
    )
    assert {*_chosen(summed, "cpu:x86-64-v4").copies} == {(0, 0), (2, 1)}


BACKWARD = """\
graph prims 1
%0: f32[2, 64, 64, 64]@[262144, 1, 4096, 64] = input "gradient"
%1: f32[2, 64, 64, 64]@[262144, 4096, 64, 1] = input "x"
%2: f32[64, 64, 3, 3]@[576, 9, 3, 1] = input "w"
%3: f32[2, 64, 64, 64]@[262144, 4096, 64, 1], %4: f32[64, 64, 3, 3]@[576, 9, 3, 1] = \
extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution_backward.default")
return %3: f32[2, 64, 64, 64]@[262144, 4096, 64, 1], %4: f32[64, 64, 3, 3]@[576, 9, 3, 1]
"""


def test_gradients_keep_the_layout_of_eager_on_processors() -> None:
    found = _chosen(BACKWARD, "cpu:x86-64-v4")
    assert found.strides[3] == sizes(262144, 4096, 64, 1)
    assert (0, 1) not in found.copies


def test_gradients_of_weights_have_the_layout_of_the_images() -> None:
    last = BACKWARD.replace("[262144, 4096, 64, 1]", "[262144, 1, 4096, 64]")
    found = _chosen(last.replace("f32", "bf16"))
    assert found.strides[4] == sizes(576, 1, 192, 64)


def _chosen(text: str, target: str = GPU) -> Layouts:
    graph: Graph = parse_graph(text)
    return choose_layouts(replace(graph), ContractionChoice(), target_facts(target))
