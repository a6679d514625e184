"""The report names what was made, and why the rest was not."""

from __future__ import annotations

import pytest
import torch

from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.single_operator import Call, lowered

CAT_OF_A_PRODUCT = """\
graph prims 1
%0: f32[4, 4]@[4, 1] = input "x"
%1: f32[4, 4] = exp(%0) from [0]
%2: f32[4, 4]@[4, 1] = extern(%1, %0; is_contraction=true, node=1, op="aten.mm.default") from [1]
%3: f32[8, 4] = cat(%1, %2; dim=0) from [2]
return %3: f32[8, 4]@[4, 1]
"""


@pytest.mark.golden
def test_the_report_has_counts_kernels_cats_steps_and_refusals() -> None:
    assert_golden(
        before_and_after("report-fusion", CAT_OF_A_PRODUCT),
        """\
-- before report-fusion: program
plan for cpu:x86-64-v3
arena of 64 bytes
buffer in0: f32[16], input 0
buffer tmp0: f32[16], temporary at byte 0
buffer ext0: f32[16], extern result
buffer out0: f32[32], output 0
kernel fused_exp_NAME
kernel fused_ge_lt_where_NAME
  0: launch fused_exp_NAME(in0, tmp0)
  1: ext0: f32[4, 4]@[4, 1] = extern aten.mm.default(tmp0: f32[4, 4]@[4, 1], in0: f32[4, 4]@[4, 1]) of captured node 1, a contraction
  2: launch fused_ge_lt_where_NAME(ext0, tmp0, out0)
return out0: f32[8, 4]@[4, 1]
-- after: report
loop nests: 2
launches: 2 of 2 distinct kernels
arena: 64 bytes
memory: peak 256 bytes (arena 64, extern results 64, outputs 128), lower bound 256 (arena 64)
extern aten.mm.default: 1
kernel fused_exp_NAME: 1 launches, 3 statements
kernel fused_ge_lt_where_NAME: 1 launches, 9 statements
kernel fused_exp_NAME: flat blocks that cost as much as 128 bytes from memory, at least 128
kernel fused_ge_lt_where_NAME: flat blocks that cost as much as 256 bytes from memory, at least 256
products by the framework: 1 of f32 by a weight of contiguous columns, for which the target has no kernels
cat of 2 pieces (node 2): selected where it is read: at most 8 pieces
step 0: kernel fused_exp_NAME: (0)
step 1: extern aten.mm.default (node 1)
step 2: kernel fused_ge_lt_where_NAME: (2)
not fused: steps 0 and 2: another kernel or extern step lies between them
""",
    )


def test_the_report_names_no_kernel_that_was_not_made() -> None:
    # The output is empty. Only the ranks of the elements that are not zero remain, as a scan.
    call = Call("aten.nonzero_static.default", [torch.ones(7)], {"size": 0})
    report = dict(optimize(lowered(call).graph, target_facts("cuda:sm_90a")).stages)["report"]
    assert "launches: 1 of 1" in report
