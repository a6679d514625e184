"""Rewrites are exact: what would round differently or lose a zero's sign stays."""

from __future__ import annotations

import pytest

from kernelfarm.dtypes import DType
from optimizer_svc.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from optimizer_svc.passes.eliminate_dead_nodes import eliminate_dead_nodes
from optimizer_svc.passes.simplify_algebra import simplify_algebra
from tests.optimizer_svc.passes.optimized_ops import _ops
from tests.support.prims_graphs import Maker, sizes, tensor


def _of_number(op: str, number: float, dtype: DType = DType.F32) -> list[str]:
    make = Maker()
    x = make.add_input(tensor(3, dtype=dtype))
    value = float(number) if dtype.is_float else int(number)
    number_value = make.add("full", dtype=dtype, shape=sizes(3), value=value)
    return _ops(make.returning(make.add(op, x, number_value)))


@pytest.mark.parametrize(
    ("op", "number", "dtype"),
    [
        ("add", -0.0, DType.F32),
        ("sub", 0.0, DType.F32),
        ("mul", 1.0, DType.F32),
        ("div", 1.0, DType.F32),
        ("add", 0, DType.I64),
        ("mul", 1, DType.I64),
    ],
)
def test_a_neutral_element_disappears(op: str, number: float, dtype: DType) -> None:
    assert _of_number(op, number, dtype) == []


def test_adding_positive_zero_stays_for_it_changes_negative_zero() -> None:
    assert _of_number("add", 0.0) == ["full", "add"]


def test_division_by_a_power_of_two_is_a_product() -> None:
    assert _of_number("div", 8.0) == ["full", "mul"]


def test_division_by_another_number_stays() -> None:
    assert _of_number("div", 3.0) == ["full", "div"]


def test_a_square_is_a_product() -> None:
    assert _of_number("pow", 2.0) == ["mul"]


def test_a_rounding_pair_of_conversions_stays() -> None:
    make = Maker()
    x = make.add_input(tensor(3))
    narrow = make.add("convert", x, dtype=DType.F16)
    assert _ops(make.returning(make.add("convert", narrow, dtype=DType.F32))) == ["convert"] * 2


def test_a_widening_pair_of_conversions_disappears() -> None:
    make = Maker()
    x = make.add_input(tensor(3, dtype=DType.F16))
    wide = make.add("convert", x, dtype=DType.F32)
    assert _ops(make.returning(make.add("convert", wide, dtype=DType.F16))) == []


def test_an_integer_goes_through_f32_only_if_that_holds_it() -> None:
    for dtype, count in ((DType.I16, 1), (DType.I32, 2)):
        make = Maker()
        x = make.add_input(tensor(3, dtype=dtype))
        middle = make.add("convert", x, dtype=DType.F32)
        graph = make.returning(make.add("convert", middle, dtype=DType.F64))
        assert _ops(graph) == ["convert"] * count


def test_a_mask_of_ones_disappears() -> None:
    make = Maker()
    x = make.add("isnan", make.add_input(tensor(3)))
    ones = make.add("full", dtype=DType.BOOL, shape=sizes(), value=True)
    spread = make.spread(ones, (), 3)
    assert _ops(make.returning(make.add("bit_and", spread, x))) == ["isnan"]


def test_a_reduction_of_single_elements_is_a_reshape() -> None:
    make = Maker()
    x = make.add_input(tensor(3, 1))
    assert _ops(make.returning(make.add("sum", x, dims=(1,)))) == ["reshape"]


def test_nothing_to_do_gives_the_same_graph() -> None:
    make = Maker()
    graph = make.returning(make.add("exp", make.add_input(tensor(3))))
    for step in (simplify_algebra, eliminate_common_subexpressions, eliminate_dead_nodes):
        assert step(graph) is graph
