"""Layouts as strides of values, and copies of operands in other layouts."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.ir.layouts import Layouts
from optimizer_svc.passes.assign_layouts import assign_layouts
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.image_graphs import GPU, TWO_CONVOLUTIONS
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import launches, sizes


@pytest.mark.golden
def test_results_get_strides_and_operands_are_copied() -> None:
    assert_golden(
        before_and_after("assign-layouts", TWO_CONVOLUTIONS, GPU),
        """\
-- before assign-layouts: graph
graph prims 1
%0: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = input "x"
%1: f16[16, 8, 3, 3]@[72, 9, 3, 1] = input "w"
%2: f16[8, 16, 1, 1]@[16, 1, 1, 1] = input "v"
%3: f16[2, 16, 16, 16]@[4096, 256, 16, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.convolution.default")
%4: f16[2, 16, 16, 16] = tanh(%3)
%5: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = extern(%4, %2; is_contraction=true, node=1, op="aten.convolution.default")
%6: f16[2, 8, 16, 16] = exp(%5)
return %6: f16[2, 8, 16, 16]@[2048, 256, 16, 1]
-- after: graph
graph prims 1
%0: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = input "x"
%1: f16[16, 8, 3, 3]@[72, 9, 3, 1] = input "w"
%2: f16[8, 16, 1, 1]@[16, 1, 1, 1] = input "v"
%7: f16[2, 8, 16, 16]@[2048, 1, 128, 8] = convert(%0; dtype=f16)
%8: f16[16, 8, 3, 3]@[72, 1, 24, 8] = convert(%1; dtype=f16)
%3: f16[2, 16, 16, 16]@[4096, 1, 256, 16] = extern(%7, %8; is_contraction=true, node=0, op="aten.convolution.default")
%4: f16[2, 16, 16, 16]@[4096, 1, 256, 16] = tanh(%3)
%5: f16[2, 8, 16, 16]@[2048, 1, 128, 8] = extern(%4, %2; is_contraction=true, node=1, op="aten.convolution.default")
%6: f16[2, 8, 16, 16] = exp(%5)
return %6: f16[2, 8, 16, 16]@[2048, 256, 16, 1]
""",
    )


def test_one_copy_serves_all_nodes_that_take_it() -> None:
    twice = TWO_CONVOLUTIONS.replace("extern(%4, %2", "extern(%0, %1").replace(
        "%5: f16[2, 8, 16, 16]@[2048,", "%5: f16[2, 16, 16, 16]@[4096,"
    )
    twice = twice.replace("%6: f16[2, 8, 16, 16] = exp(%5)", "%6: f16[2, 16, 16, 16] = add(%4, %5)")
    twice = twice.replace(
        "return %6: f16[2, 8, 16, 16]@[2048,", "return %6: f16[2, 16, 16, 16]@[4096,"
    )
    last = sizes(2048, 1, 128, 8)
    changed = assign_layouts(parse_graph(twice), Layouts({}, {(0, 0): last, (2, 0): last}))
    assert [node.op for node in changed.nodes].count("convert") == 1


def test_strides_of_kernels_results_are_the_passes_own() -> None:
    """Strides that a graph states for a kernel's result bind nothing, and could be wrong."""
    stated = TWO_CONVOLUTIONS.replace(
        "%4: f16[2, 16, 16, 16] =", "%4: f16[2, 16, 16, 16]@[1, 1, 1, 1] ="
    )
    changed = assign_layouts(parse_graph(stated), Layouts({}, {}))
    assert changed == parse_graph(TWO_CONVOLUTIONS)


def test_copies_of_weights_and_images_are_the_only_launches_beside_the_work() -> None:
    program = optimize(parse_graph(TWO_CONVOLUTIONS), target_facts(GPU)).program
    assert len(launches(program)) == 4  # the weight and the input are copied
