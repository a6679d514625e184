"""Every output is a value of its own."""

from __future__ import annotations

from tests.optimizer_svc.passes.view_graphs import _view
from tests.support.prims_graphs import (
    Maker,
    launches,
    program_of,
    sizes,
    tensor,
    tensor_with_strides,
)


def test_an_extern_result_is_returned_as_it_is_if_its_strides_fit() -> None:
    make = Maker()
    x = make.add_input(tensor(4, 6))
    (y,) = make.add_extern(
        "aten.mm.default", 0, [x], [tensor_with_strides(4, 6)], is_contraction=True
    )
    z = make.add("reshape", y, shape=sizes(2, 2, 6))
    program = program_of(make.returning(z))
    assert not launches(program)
    assert _view(program, 0).buffer == "ext0"


def test_an_extern_result_returned_twice_is_copied_once() -> None:
    make = Maker()
    x = make.add_input(tensor(4, 6))
    (y,) = make.add_extern(
        "aten.mm.default", 0, [x], [tensor_with_strides(4, 6)], is_contraction=True
    )
    program = program_of(make.returning(y, y))
    assert len(launches(program)) == 1
    assert {_view(program, 0).buffer, _view(program, 1).buffer} == {"ext0", "out1"}


def test_an_input_that_is_returned_is_copied() -> None:
    make = Maker()
    x = make.add_input(tensor(5))
    program = program_of(make.returning(x))
    assert _view(program, 0).buffer == "out0"
    assert len(launches(program)) == 1


def test_a_value_returned_twice_is_computed_once() -> None:
    make = Maker()
    y = make.add("exp", make.add_input(tensor(5)))
    program = program_of(make.returning(y, y))
    assert len(launches(program)) == 1
    assert [_view(program, k).buffer for k in (0, 1)] == ["out0", "out1"]
