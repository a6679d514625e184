"""Gradients of attention lie as the operands do, where the target's kernels allocate them so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.ir.text import parse_graph, print_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.lay_out_gradients import lay_out_gradients
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

H100 = target_facts("cuda:sm_90a")

# Queries by rows, keys by heads, values with gaps between their rows.
GRADIENTS = """\
graph prims 1
%0: bf16[2, 4, 6, 8]@[192, 8, 32, 1] = input "grad"
%1: bf16[2, 4, 6, 8]@[192, 8, 32, 1] = input "output"
%2: f32[2, 4, 6]@[24, 6, 1] = input "logsumexp"
%3: bf16[2, 4, 6, 8]@[192, 8, 32, 1] = input "query"
%4: bf16[2, 4, 6, 8]@[192, 48, 8, 1] = input "key"
%5: bf16[2, 4, 6, 8]@[576, 144, 24, 1] = input "value"
%6: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %7: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %8: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %9: f32[]@[] = extern(%0, %1, %2, %3, %4, %5; is_contraction=true, node=0, op="kernelfarm.attention_backward.default") from [0]
%10: f32[2, 4, 6, 8] = convert(%7; dtype=f32) from [1]
return %6: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %10: f32[2, 4, 6, 8]@[192, 48, 8, 1], %8: bf16[2, 4, 6, 8]@[192, 8, 32, 1]
"""


@pytest.mark.golden
def test_the_gradient_of_repeated_keys_lies_as_they_do() -> None:
    assert_golden(
        before_and_after("lay-out-gradients", GRADIENTS, "cuda:sm_90a").partition("-- after")[2],
        """\
: graph
graph prims 1
%0: bf16[2, 4, 6, 8]@[192, 8, 32, 1] = input "grad"
%1: bf16[2, 4, 6, 8]@[192, 8, 32, 1] = input "output"
%2: f32[2, 4, 6]@[24, 6, 1] = input "logsumexp"
%3: bf16[2, 4, 6, 8]@[192, 8, 32, 1] = input "query"
%4: bf16[2, 4, 6, 8]@[192, 48, 8, 1] = input "key"
%5: bf16[2, 4, 6, 8]@[576, 144, 24, 1] = input "value"
%6: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %7: bf16[2, 4, 6, 8]@[192, 48, 8, 1], %8: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %9: f32[]@[] = extern(%0, %1, %2, %3, %4, %5; is_contraction=true, node=0, op="kernelfarm.attention_backward.default") from [0]
%10: f32[2, 4, 6, 8] = convert(%7; dtype=f32) from [1]
return %6: bf16[2, 4, 6, 8]@[192, 8, 32, 1], %10: f32[2, 4, 6, 8]@[192, 48, 8, 1], %8: bf16[2, 4, 6, 8]@[192, 8, 32, 1]
""",
    )


def test_gradients_that_are_outputs_keep_the_layouts_of_eager() -> None:
    returned = GRADIENTS.replace(
        "%10: f32[2, 4, 6, 8]@[192, 48, 8, 1]", "%7: bf16[2, 4, 6, 8]@[192, 8, 32, 1]"
    )
    graph = parse_graph(returned)
    assert lay_out_gradients(graph, H100) is graph


def test_other_targets_keep_what_the_captured_graph_states() -> None:
    graph = parse_graph(GRADIENTS)
    assert lay_out_gradients(graph, replace(H100, gradients_like_operands=False)) is graph
    assert print_graph(lay_out_gradients(graph, H100)) != print_graph(graph)
