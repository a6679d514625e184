"""Nodes without a reader are removed, unless they may have effects."""

from __future__ import annotations

import pytest

from frontend_svc.decompose.passes.remove_dead_code import REMOVE_DEAD_CODE
from tests.frontend_svc.decompose.passes.rewrites import graph_of
from tests.support.frontend_passes import before_and_after
from tests.support.goldens import assert_golden
from tests.support.small_graphs import tensor

UNREAD = """\
graph prims 1
%0: f32[3, 3]@[3, 1] = input "x"
%1: f32[3, 3] = exp(%0) from [0]
%2: f32[9] = reshape(%1; shape=[{9}]) from [1]
%3: f32[3, 3]@[3, 1] = extern(%0; is_contraction=false, node=2, op="aten.rand.default") from [2]
%4: f32[3, 3]@[3, 1] = extern(%0, %0; is_contraction=true, node=3, op="aten.mm.default") from [3]
%5: f32[3, 3] = neg(%0) from [4]
return %5: f32[3, 3]@[3, 1]
"""


@pytest.mark.golden
def test_unread_prims_and_products_go_and_unread_random_numbers_are_still_drawn() -> None:
    assert_golden(
        before_and_after("remove_dead_code", UNREAD),
        """\
-- before remove_dead_code: graph
graph prims 1
%0: f32[3, 3]@[3, 1] = input "x"
%1: f32[3, 3] = exp(%0) from [0]
%2: f32[9] = reshape(%1; shape=[{9}]) from [1]
%3: f32[3, 3]@[3, 1] = extern(%0; is_contraction=false, node=2, op="aten.rand.default") from [2]
%4: f32[3, 3]@[3, 1] = extern(%0, %0; is_contraction=true, node=3, op="aten.mm.default") from [3]
%5: f32[3, 3] = neg(%0) from [4]
return %5: f32[3, 3]@[3, 1]
-- after: graph
graph prims 1
%0: f32[3, 3]@[3, 1] = input "x"
%3: f32[3, 3]@[3, 1] = extern(%0; is_contraction=false, node=2, op="aten.rand.default") from [2]
%5: f32[3, 3] = neg(%0) from [4]
return %5: f32[3, 3]@[3, 1]
note: from [0]: removed: nothing uses it
note: from [1]: removed: a later view contains it, or nothing uses it
note: from [3]: removed: nothing uses it
""",
    )


UNKNOWN_OPERATOR = """\
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3]@[1] = extern(%0; is_contraction=false, node=0, op="custom.log.default")
return %0: f32[3]@[1]
"""


@pytest.mark.golden
def test_an_operator_that_the_table_does_not_know_stays() -> None:
    assert_golden(
        before_and_after("remove_dead_code", UNKNOWN_OPERATOR),
        """\
-- before remove_dead_code: graph
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3]@[1] = extern(%0; is_contraction=false, node=0, op="custom.log.default")
return %0: f32[3]@[1]
-- after: graph
the same
""",
    )


def test_a_graph_without_dead_code_is_the_same_object() -> None:
    graph = graph_of(lambda b, x: b.add("neg", x), tensor(3))
    assert REMOVE_DEAD_CODE.rewrite(graph, graph).graph is graph
