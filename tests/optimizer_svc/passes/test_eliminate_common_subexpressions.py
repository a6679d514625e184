"""Equal nodes become one. Extern nodes and numbers of different bits stay."""

from __future__ import annotations

import pytest

from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

EQUAL_NODES = """\
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = exp(%0)
%2: f32[4] = exp(%0)
%3: f32[4] = neg(%1)
%4: f32[4] = neg(%2)
%5: f32[4] = add(%3, %4)
return %5: f32[4]@[1]
"""


@pytest.mark.golden
def test_equal_nodes_become_one_and_so_do_nodes_that_read_them() -> None:
    assert_golden(
        before_and_after("eliminate-common-subexpressions", EQUAL_NODES),
        """\
-- before eliminate-common-subexpressions: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = exp(%0)
%2: f32[4] = exp(%0)
%3: f32[4] = neg(%1)
%4: f32[4] = neg(%2)
%5: f32[4] = add(%3, %4)
return %5: f32[4]@[1]
-- after: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = exp(%0)
%3: f32[4] = neg(%1)
%5: f32[4] = add(%3, %3)
return %5: f32[4]@[1]
""",
    )


TWO_ZEROS = """\
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3] = full(; dtype=f32, shape=[{3}], value=0.0)
%2: f32[3] = copysign(%0, %1)
%3: f32[3] = full(; dtype=f32, shape=[{3}], value=-0.0)
%4: f32[3] = copysign(%0, %3)
return %2: f32[3]@[1], %4: f32[3]@[1]
"""


@pytest.mark.golden
def test_zeros_of_both_signs_are_two_constants() -> None:
    assert_golden(
        before_and_after("eliminate-common-subexpressions", TWO_ZEROS),
        """\
-- before eliminate-common-subexpressions: graph
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3] = full(; dtype=f32, shape=[{3}], value=0.0)
%2: f32[3] = copysign(%0, %1)
%3: f32[3] = full(; dtype=f32, shape=[{3}], value=-0.0)
%4: f32[3] = copysign(%0, %3)
return %2: f32[3]@[1], %4: f32[3]@[1]
-- after: graph
the same
""",
    )


TWO_DRAWS = """\
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3]@[1] = extern(%0; is_contraction=false, node=0, op="aten.rand_like.default")
%2: f32[3]@[1] = extern(%0; is_contraction=false, node=0, op="aten.rand_like.default")
%3: f32[3] = sub(%1, %2)
return %3: f32[3]@[1]
"""


@pytest.mark.golden
def test_equal_extern_nodes_stay_two_because_they_may_draw_random_numbers() -> None:
    assert_golden(
        before_and_after("eliminate-common-subexpressions", TWO_DRAWS),
        """\
-- before eliminate-common-subexpressions: graph
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3]@[1] = extern(%0; is_contraction=false, node=0, op="aten.rand_like.default")
%2: f32[3]@[1] = extern(%0; is_contraction=false, node=0, op="aten.rand_like.default")
%3: f32[3] = sub(%1, %2)
return %3: f32[3]@[1]
-- after: graph
the same
""",
    )
