"""Views are composed, neutral arithmetic disappears, and gathers by counters become slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from frontend_svc.decompose.passes.fold_constants import FOLD_CONSTANTS
from frontend_svc.decompose.passes.simplify_prims import SIMPLIFY_PRIMS
from kernelfarm.dtypes import DType
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Ref, TensorType
from tests.frontend_svc.decompose.passes.rewrites import (
    F32,
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

VIEWS_AND_A_GATHER = """\
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[24] = reshape(%0; shape=[{24}]) from [0]
%2: f32[2, 12] = reshape(%1; shape=[{2}, {12}]) from [1]
%3: i64[3] = iota(; dtype=i64, length={3}) from [2]
%4: f32[2, 3] = take(%2, %3; dim=1) from [3]
return %4: f32[2, 3]@[3, 1]
"""


@pytest.mark.golden
def test_two_reshapes_become_one_and_a_take_of_a_range_becomes_a_slice() -> None:
    assert_golden(
        before_and_after("simplify_prims", VIEWS_AND_A_GATHER),
        """\
-- before simplify_prims: graph
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[24] = reshape(%0; shape=[{24}]) from [0]
%2: f32[2, 12] = reshape(%1; shape=[{2}, {12}]) from [1]
%3: i64[3] = iota(; dtype=i64, length={3}) from [2]
%4: f32[2, 3] = take(%2, %3; dim=1) from [3]
return %4: f32[2, 3]@[3, 1]
-- after: graph
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[24] = reshape(%0; shape=[{24}]) from [0]
%2: f32[2, 12] = reshape(%0; shape=[{2}, {12}]) from [1]
%3: i64[3] = iota(; dtype=i64, length={3}) from [2]
%4: f32[2, 3] = slice(%2; limits=[{2}, {3}], starts=[{0}, {0}], steps=[{1}, {1}]) from [3]
return %4: f32[2, 3]@[3, 1]
note: from [0]: removed: reshape changes nothing
note: from [1]: removed: reshape changes nothing
note: from [3]: removed: take changes nothing
""",
    )


INEXACT = """\
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=0.0)
%2: f32[4] = add(%0, %1)
%3: f16[4] = convert(%2; dtype=f16)
%4: f32[4] = convert(%3; dtype=f32)
return %4: f32[4]@[1]
"""


@pytest.mark.golden
def test_adding_zero_and_a_conversion_that_rounds_stay() -> None:
    assert_golden(
        before_and_after("simplify_prims", INEXACT),
        """\
-- before simplify_prims: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=0.0)
%2: f32[4] = add(%0, %1)
%3: f16[4] = convert(%2; dtype=f16)
%4: f32[4] = convert(%3; dtype=f32)
return %4: f32[4]@[1]
-- after: graph
the same
""",
    )


SIMPLIFICATIONS: dict[str, tuple[Sequence[TensorType], Callable[..., int], list[str]]] = {
    "a reshape of a reshape is one": (
        [tensor(4, 6)],
        lambda b, x: b.add("reshape", b.add("reshape", x, shape=(24,)), shape=(2, 12)),
        ["reshape"],
    ),
    "a reshape there and back is nothing": (
        [tensor(4, 6)],
        lambda b, x: b.add("reshape", b.add("reshape", x, shape=(24,)), shape=(4, 6)),
        [],
    ),
    "a permute of a permute is one": (
        [tensor(2, 3, 4)],
        lambda b, x: b.add("permute", b.add("permute", x, dims=(1, 0, 2)), dims=(2, 1, 0)),
        ["permute"],
    ),
    "a permute there and back is nothing": (
        [tensor(2, 3, 4)],
        lambda b, x: b.add("permute", b.add("permute", x, dims=(1, 2, 0)), dims=(2, 0, 1)),
        [],
    ),
    "a permute that moves only ones is a reshape": (
        [tensor(2, 1, 4)],
        lambda b, x: b.add("permute", x, dims=(1, 0, 2)),
        ["reshape"],
    ),
    "a broadcast of a broadcast is one": (
        [tensor(3)],
        lambda b, x: b.add(
            "broadcast_in_dim",
            b.add("broadcast_in_dim", x, dims=(1,), shape=(1, 3)),
            dims=(1, 2),
            shape=(5, 4, 3),
        ),
        ["broadcast_in_dim"],
    ),
    "a slice of everything is nothing": (
        [tensor(5)],
        lambda b, x: b.add("slice", x, starts=(0,), limits=(5,), steps=(1,)),
        [],
    ),
    "a slice of a slice is one": (
        [tensor(9)],
        lambda b, x: b.add(
            "slice",
            b.add("slice", x, starts=(2,), limits=(8,), steps=(1,)),
            starts=(1,),
            limits=(5,),
            steps=(2,),
        ),
        ["slice"],
    ),
    "two flips are nothing": (
        [tensor(5)],
        lambda b, x: b.add("flip", b.add("flip", x, dims=(0,)), dims=(0,)),
        [],
    ),
    "times one is nothing": ([tensor(4)], lambda b, x: b.add("mul", full(b, 1.0, 4), x), []),
    "over one is nothing": ([tensor(4)], lambda b, x: b.add("div", x, full(b, 1.0, 4)), []),
    "minus zero is nothing": ([tensor(4)], lambda b, x: b.add("sub", x, full(b, 0.0, 4)), []),
    "plus zero is nothing for integers": (
        [tensor(4, dtype=I64)],
        lambda b, x: b.add("add", x, full(b, 0, 4, dtype=I64)),
        [],
    ),
    "widening and narrowing again is nothing": (
        [tensor(4, dtype=DType.F16)],
        lambda b, x: b.add("convert", b.add("convert", x, dtype=F32), dtype=DType.F16),
        [],
    ),
    "a gather by two ranges is a view": (
        [tensor(4, 5)],
        lambda b, x: b.add(
            "gather_nd",
            x,
            b.add("broadcast_in_dim", iota(b, 4), dims=(0,), shape=(4, 5)),
            b.add("broadcast_in_dim", iota(b, 5), dims=(1,), shape=(4, 5)),
            dims=(0, 1),
        ),
        [],
    ),
    "a gather by crossed ranges is a transpose": (
        [tensor(4, 5)],
        lambda b, x: b.add(
            "gather_nd",
            x,
            b.add("broadcast_in_dim", iota(b, 4), dims=(1,), shape=(5, 4)),
            b.add("broadcast_in_dim", iota(b, 5), dims=(0,), shape=(5, 4)),
            dims=(0, 1),
        ),
        ["permute"],
    ),
    "a gather at one row and a shifted range is a slice": (
        [tensor(4, 5, 2)],
        lambda b, x: b.add(
            "gather_nd",
            x,
            full(b, 2, 3, dtype=I64),
            b.add("add", iota(b, 3), full(b, 1, 3, dtype=I64)),
            dims=(0, 1),
        ),
        ["slice", "reshape"],
    ),
    "a gather along the diagonal stays": (
        [tensor(4, 4)],
        lambda b, x: b.add("gather_nd", x, iota(b, 4), iota(b, 4), dims=(0, 1)),
        ["iota", "gather_nd"],
    ),
    "a take of a range is a slice": (
        [tensor(4, 6)],
        lambda b, x: b.add("take", x, iota(b, 3), dim=1),
        ["slice"],
    ),
}


@pytest.mark.parametrize("name", SIMPLIFICATIONS)
def test_simplification_keeps_the_meaning(name: str) -> None:
    inputs, build, expected = SIMPLIFICATIONS[name]
    before = graph_of(build, *inputs)
    after = applied(before, SIMPLIFY_PRIMS)
    assert ops(after) == expected
    assert_same_meaning(before, after)


def test_a_take_beyond_the_axis_stays_an_error() -> None:
    graph = graph_of(lambda b, x: b.add("take", x, iota(b, 7), dim=1), tensor(4, 6))
    assert ops(applied(graph, FOLD_CONSTANTS, SIMPLIFY_PRIMS)) == ["iota", "take"]


def test_a_constant_condition_selects_its_branch() -> None:
    def build(b: GraphBuilder, x: int, y: int) -> int:
        return b.add("where", full(b, False, 4, dtype=DType.BOOL), x, y)

    graph = graph_of(build, tensor(4), tensor(4))
    after = applied(graph, SIMPLIFY_PRIMS)
    assert after.outputs == (Ref(1),)
