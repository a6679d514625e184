"""Each output is a value of its own, which a kernel or an extern step makes."""

from __future__ import annotations

import pytest

from tests.optimizer_svc.passes.output_views import output_view
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import (
    Maker,
    launches,
    program_of,
    sizes,
    tensor,
    tensor_with_strides,
)

SHARED_OUTPUTS = """\
graph prims 1
%0: f32[5]@[1] = input "x"
%1: f32[5] = exp(%0)
return %1: f32[5]@[1], %1: f32[5]@[1], %0: f32[5]@[1]
"""


@pytest.mark.golden
def test_a_value_returned_twice_and_a_returned_input_are_copied() -> None:
    assert_golden(
        before_and_after("separate-outputs", SHARED_OUTPUTS),
        """\
-- before separate-outputs: graph
graph prims 1
%0: f32[5]@[1] = input "x"
%1: f32[5] = exp(%0)
return %1: f32[5]@[1], %1: f32[5]@[1], %0: f32[5]@[1]
-- after: graph
graph prims 1
%0: f32[5]@[1] = input "x"
%1: f32[5] = exp(%0)
%2: f32[5] = convert(%1; dtype=f32)
%3: f32[5] = convert(%0; dtype=f32)
return %1: f32[5]@[1], %2: f32[5]@[1], %3: f32[5]@[1]
""",
    )


DISTINCT_OUTPUTS = """\
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[4, 6]@[6, 1] = extern(%0; is_contraction=true, node=0, op="aten.mm.default")
%2: f32[24] = reshape(%1; shape=[{24}])
%3: f32[4, 6] = exp(%1)
return %2: f32[24]@[1], %3: f32[4, 6]@[6, 1]
"""


@pytest.mark.golden
def test_distinct_values_and_a_view_of_an_extern_result_stay() -> None:
    assert_golden(
        before_and_after("separate-outputs", DISTINCT_OUTPUTS),
        """\
-- before separate-outputs: graph
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[4, 6]@[6, 1] = extern(%0; is_contraction=true, node=0, op="aten.mm.default")
%2: f32[24] = reshape(%1; shape=[{24}])
%3: f32[4, 6] = exp(%1)
return %2: f32[24]@[1], %3: f32[4, 6]@[6, 1]
-- after: graph
the same
""",
    )


def test_an_extern_result_with_fitting_strides_is_returned_without_a_copy() -> None:
    make = Maker()
    x = make.add_input(tensor(4, 6))
    (y,) = make.add_extern(
        "aten.mm.default", 0, [x], [tensor_with_strides(4, 6)], is_contraction=True
    )
    z = make.add("reshape", y, shape=sizes(2, 2, 6))
    program = program_of(make.returning(z))
    assert not launches(program)
    assert output_view(program, 0).buffer == "ext0"


def test_an_extern_result_returned_twice_is_copied_once() -> None:
    make = Maker()
    x = make.add_input(tensor(4, 6))
    (y,) = make.add_extern(
        "aten.mm.default", 0, [x], [tensor_with_strides(4, 6)], is_contraction=True
    )
    program = program_of(make.returning(y, y))
    assert len(launches(program)) == 1
    assert {output_view(program, 0).buffer, output_view(program, 1).buffer} == {"ext0", "out1"}


def test_an_input_that_is_returned_is_copied() -> None:
    make = Maker()
    x = make.add_input(tensor(5))
    program = program_of(make.returning(x))
    assert output_view(program, 0).buffer == "out0"
    assert len(launches(program)) == 1


def test_a_value_returned_twice_is_computed_once() -> None:
    make = Maker()
    y = make.add("exp", make.add_input(tensor(5)))
    program = program_of(make.returning(y, y))
    assert len(launches(program)) == 1
    assert [output_view(program, k).buffer for k in (0, 1)] == ["out0", "out1"]
