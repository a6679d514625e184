"""Depthwise convolutions as steps of a template; `test_depthwise_template.py` runs them."""

from __future__ import annotations

import pytest

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
