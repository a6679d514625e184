"""Depthwise convolutions as steps of a template; `test_depthwise_template.py` runs them."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.passes.compute_depthwise import compute_depthwise
from tests.support.contraction_programs import DEPTHWISE
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after


@pytest.mark.golden
def test_a_kernel_turns_the_weight_for_the_template() -> None:
    assert_golden(
        before_and_after("compute-depthwise", DEPTHWISE, "cuda:sm_90a"),
        """\
-- before compute-depthwise: graph
graph prims 1
%0: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%1: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%2: bf16[32]@[1] = input "b"
%3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default", window=[2, 2, 1, 1, 1, 1, 32]) from [0]
return %3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32]
-- after: graph
graph prims 1
%0: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%1: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%2: bf16[32]@[1] = input "b"
%4: bf16[32, 3, 3] = reshape(%1; shape=[{32}, {3}, {3}]) from [0]
%5: bf16[3, 3, 32] = permute(%4; dims=[1, 2, 0]) from [0]
%6: bf16[3, 3, 32] = convert(%5; dtype=bf16) from [0]
%3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32] = extern(%0, %6, %2; is_contraction=false, node=0, op="template.depthwise", window=[2, 2, 1, 1, 1, 1, 32]) from [0]
return %3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32]
""",
    )


@pytest.mark.golden
def test_a_processor_s_convolution_becomes_prims() -> None:
    assert_golden(
        before_and_after("compute-depthwise", DEPTHWISE, "cpu:x86-64-v3-amd"),
        """\
-- before compute-depthwise: graph
graph prims 1
%0: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%1: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%2: bf16[32]@[1] = input "b"
%3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default", window=[2, 2, 1, 1, 1, 1, 32]) from [0]
return %3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32]
-- after: graph
graph prims 1
%0: bf16[2, 32, 9, 14]@[4032, 1, 448, 32] = input "x"
%1: bf16[32, 1, 3, 3]@[9, 9, 3, 1] = input "w"
%2: bf16[32]@[1] = input "b"
%5: bf16[2, 32, 11, 16] = pad(%0; high=[{0}, {0}, {1}, {1}], low=[{0}, {0}, {1}, {1}], value=0.0) from [0]
%6: bf16[2, 32, 5, 7, 3, 3] = window(%5; dilations=[{1}, {1}], dims=[2, 3], sizes=[{3}, {3}], strides=[{2}, {2}]) from [0]
%7: f32[2, 32, 5, 7, 3, 3] = convert(%6; dtype=f32) from [0]
%8: bf16[32, 3, 3] = reshape(%1; shape=[{32}, {3}, {3}]) from [0]
%4: bf16[3, 3, 32] = permute(%8; dims=[1, 2, 0]) from [0]
%9: f32[3, 3, 32] = convert(%4; dtype=f32) from [0]
%10: f32[32, 3, 3] = permute(%9; dims=[2, 0, 1]) from [0]
%11: f32[2, 32, 5, 7, 3, 3] = broadcast_in_dim(%10; dims=[1, 4, 5], shape=[{2}, {32}, {5}, {7}, {3}, {3}]) from [0]
%12: f32[2, 32, 5, 7, 3, 3] = mul(%7, %11) from [0]
%13: f32[32] = convert(%2; dtype=f32) from [0]
%14: f32[2, 32, 5, 7] = broadcast_in_dim(%13; dims=[1], shape=[{2}, {32}, {5}, {7}]) from [0]
%15: f32[2, 32, 5, 7]@[1120, 1, 224, 32] = sum(%12; dims=[4, 5]) from [0]
%16: f32[2, 32, 5, 7]@[1120, 1, 224, 32] = add(%15, %14) from [0]
%3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32] = convert(%16; dtype=bf16) from [0]
return %3: bf16[2, 32, 5, 7]@[1120, 1, 224, 32]
""",
    )


def test_without_a_choice_nothing_changes() -> None:
    graph = parse_graph(DEPTHWISE)
    assert compute_depthwise(graph, ContractionChoice()) is graph
