"""Values that depend on no input become one number or one series. All others stay."""

from __future__ import annotations

import pytest

from frontend_svc.decompose.passes.fold_constants import FOLD_CONSTANTS
from frontend_svc.decompose.passes.simplify_prims import SIMPLIFY_PRIMS
from kernelfarm.ir.builder import GraphBuilder
from tests.frontend_svc.decompose.passes.rewrites import (
    I64,
    applied,
    assert_same_meaning,
    full,
    graph_of,
    iota,
    ops,
)
from tests.support.frontend_passes import before_and_after
from tests.support.goldens import assert_golden
from tests.support.small_graphs import tensor

SUM_AND_SERIES = """\
graph prims 1
%0: i64[4] = full(; dtype=i64, shape=[{4}], value=1)
%1: i64[4] = full(; dtype=i64, shape=[{4}], value=2)
%2: i64[4] = add(%0, %1) from [3]
%3: i64[4] = cumsum(%2; dim=0) from [4]
return %2: i64[4]@[1], %3: i64[4]@[1]
"""


@pytest.mark.golden
def test_a_sum_of_numbers_is_a_number_and_its_running_sum_is_a_series() -> None:
    assert_golden(
        before_and_after("fold_constants", SUM_AND_SERIES),
        """\
-- before fold_constants: graph
graph prims 1
%0: i64[4] = full(; dtype=i64, shape=[{4}], value=1)
%1: i64[4] = full(; dtype=i64, shape=[{4}], value=2)
%2: i64[4] = add(%0, %1) from [3]
%3: i64[4] = cumsum(%2; dim=0) from [4]
return %2: i64[4]@[1], %3: i64[4]@[1]
-- after: graph
graph prims 1
%0: i64[4] = full(; dtype=i64, shape=[{4}], value=1)
%1: i64[4] = full(; dtype=i64, shape=[{4}], value=2)
%2: i64[4] = full(; dtype=i64, shape=[{4}], value=3) from [3]
%3: i64[4] = iota(; dtype=i64, length={4}) from [4]
%4: i64[4] = mul(%3, %2) from [4]
%5: i64[4] = add(%4, %2) from [4]
return %2: i64[4]@[1], %5: i64[4]@[1]
note: from [3]: folded: every element is 3
note: from [4]: folded: counts from 3 by 3
""",
    )


SQUARES = """\
graph prims 1
%0: i64[5] = iota(; dtype=i64, length={5})
%1: i64[5] = mul(%0, %0)
return %1: i64[5]@[1]
"""


@pytest.mark.golden
def test_constants_that_are_no_series_stay() -> None:
    assert_golden(
        before_and_after("fold_constants", SQUARES),
        """\
-- before fold_constants: graph
graph prims 1
%0: i64[5] = iota(; dtype=i64, length={5})
%1: i64[5] = mul(%0, %0)
return %1: i64[5]@[1]
-- after: graph
the same
""",
    )


def test_a_uniform_running_sum_folds() -> None:
    def build(b: GraphBuilder, x: int) -> int:
        steps = b.add("sub", iota(b, 8), iota(b, 8))
        same = b.add("eq", b.add("cumsum", steps, dim=0), full(b, 0, 8, dtype=I64))
        return b.add("where", same, x, full(b, 9.0, 8))

    graph = graph_of(build, tensor(8))
    after = applied(graph, FOLD_CONSTANTS, SIMPLIFY_PRIMS)
    assert ops(after) == []
    assert_same_meaning(graph, after)


def test_an_arithmetic_series_keeps_its_meaning() -> None:
    def build(b: GraphBuilder) -> int:
        return b.add("cumsum", full(b, 3, 5, dtype=I64), dim=0)  # 3, 6, 9, ...

    graph = graph_of(build)
    after = applied(graph, FOLD_CONSTANTS)
    assert ops(after) == ["full", "iota", "mul", "add"]
    assert_same_meaning(graph, after)


def test_uniform_values_of_any_size_fold() -> None:
    def build(b: GraphBuilder) -> int:
        return b.add("mul", full(b, 2.0, 4096, 4096), full(b, 3.0, 4096, 4096))

    (node,) = applied(graph_of(build), FOLD_CONSTANTS).nodes
    assert (node.op, node.attr("value")) == ("full", 6.0)


def test_a_graph_without_constants_is_the_same_object() -> None:
    graph = graph_of(lambda b, x: b.add("neg", x), tensor(3))
    assert FOLD_CONSTANTS.rewrite(graph, graph).graph is graph
