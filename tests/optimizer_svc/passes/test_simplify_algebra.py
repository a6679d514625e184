"""Rewrites are exact: a node stays if its replacement would round differently or lose a sign."""

from __future__ import annotations

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Ref
from kernelfarm.ir.text import parse_graph
from optimizer_svc.passes.eliminate_dead_nodes import eliminate_dead_nodes
from optimizer_svc.passes.simplify_algebra import simplify_algebra
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, sizes, tensor

TIMES_ONE_OVER_FOUR = """\
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=1.0)
%2: f32[4] = mul(%0, %1)
%3: f32[4] = full(; dtype=f32, shape=[{4}], value=4.0)
%4: f32[4] = div(%2, %3)
return %4: f32[4]@[1]
"""


@pytest.mark.golden
def test_a_neutral_factor_goes_and_a_division_by_a_power_of_two_is_a_product() -> None:
    assert_golden(
        before_and_after("simplify-algebra", TIMES_ONE_OVER_FOUR),
        """\
-- before simplify-algebra: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=1.0)
%2: f32[4] = mul(%0, %1)
%3: f32[4] = full(; dtype=f32, shape=[{4}], value=4.0)
%4: f32[4] = div(%2, %3)
return %4: f32[4]@[1]
-- after: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=1.0)
%3: f32[4] = full(; dtype=f32, shape=[{4}], value=4.0)
%5: f32[4] = full(; dtype=f32, shape=[{4}], value=0.25)
%6: f32[4] = mul(%0, %5)
return %6: f32[4]@[1]
""",
    )


WIDENED = """\
graph prims 1
%0: f16[4]@[1] = input "x"
%1: f32[4] = convert(%0; dtype=f32)
%2: f16[4] = convert(%1; dtype=f16)
return %2: f16[4]@[1]
"""


@pytest.mark.golden
def test_a_conversion_to_a_wider_type_and_back_disappears() -> None:
    assert_golden(
        before_and_after("simplify-algebra", WIDENED),
        """\
-- before simplify-algebra: graph
graph prims 1
%0: f16[4]@[1] = input "x"
%1: f32[4] = convert(%0; dtype=f32)
%2: f16[4] = convert(%1; dtype=f16)
return %2: f16[4]@[1]
-- after: graph
graph prims 1
%0: f16[4]@[1] = input "x"
%1: f32[4] = convert(%0; dtype=f32)
return %0: f16[4]@[1]
""",
    )


INEXACT = """\
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=0.0)
%2: f32[4] = add(%0, %1)
%3: f32[4] = full(; dtype=f32, shape=[{4}], value=3.0)
%4: f32[4] = div(%2, %3)
%5: f16[4] = convert(%4; dtype=f16)
%6: f32[4] = convert(%5; dtype=f32)
return %6: f32[4]@[1]
"""


@pytest.mark.golden
def test_adding_zero_dividing_by_three_and_rounding_stay() -> None:
    # x + 0.0 turns -0.0 into 0.0, x * (1 / 3) rounds twice, and f16 rounds.
    assert_golden(
        before_and_after("simplify-algebra", INEXACT),
        """\
-- before simplify-algebra: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = full(; dtype=f32, shape=[{4}], value=0.0)
%2: f32[4] = add(%0, %1)
%3: f32[4] = full(; dtype=f32, shape=[{4}], value=3.0)
%4: f32[4] = div(%2, %3)
%5: f16[4] = convert(%4; dtype=f16)
%6: f32[4] = convert(%5; dtype=f32)
return %6: f32[4]@[1]
-- after: graph
the same
""",
    )


def _ops(graph: Graph) -> list[str]:
    """The operators that outputs need after the pass."""
    return [node.op for node in eliminate_dead_nodes(simplify_algebra(graph)).nodes]


def _with_number(op: str, number: float, dtype: DType = DType.F32) -> list[str]:
    make = Maker()
    x = make.add_input(tensor(3, dtype=dtype))
    value = float(number) if dtype.is_float else int(number)
    constant = make.add("full", dtype=dtype, shape=sizes(3), value=value)
    return _ops(make.returning(make.add(op, x, constant)))


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
    assert _with_number(op, number, dtype) == []


def test_a_square_is_a_product() -> None:
    assert _with_number("pow", 2.0) == ["mul"]


def test_an_integer_is_converted_once_if_the_type_between_holds_it() -> None:
    # f32 holds every i16, but not every i32.
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


@pytest.mark.parametrize(("mask", "count"), [(15, 1), (255, 1), (256, 2)])
def test_a_masked_integer_is_converted_once_if_the_type_between_holds_it(
    mask: int, count: int
) -> None:
    """bf16 holds eight bits; models unpack weights of 4 bits so, with views between."""
    make = Maker()
    x = make.add_input(tensor(4, dtype=DType.I32))
    constant = make.add("full", dtype=DType.I32, shape=sizes(4), value=mask)
    masked = make.add("reshape", make.add("bit_and", x, constant), shape=sizes(2, 2))
    narrow = make.add("convert", masked, dtype=DType.BF16)
    viewed = make.add("reshape", narrow, shape=sizes(4))
    graph = make.returning(make.add("convert", viewed, dtype=DType.F32))
    assert _ops(graph).count("convert") == count


TRANSPOSED = """\
graph prims 1
%0: bf16[4, 32]@[32, 1] = input "x"
%1: i8[16, 32]@[32, 1] = input "w"
%2: i8[32, 16] = permute(%1; dims=[1, 0]) from [0]
%3: bf16[32, 16] = convert(%2; dtype=bf16) from [1]
%4: bf16[4, 16]@[16, 1] = extern(%0, %3; is_contraction=true, node=2, op="aten.mm.default") from [2]
return %4: bf16[4, 16]@[16, 1]{more}
"""


def test_a_matrix_for_products_is_converted_before_it_is_transposed() -> None:
    """So it is stored in the order of what it is made from, and products read it transposed."""
    graph = simplify_algebra(parse_graph(TRANSPOSED.format(more="")))
    ops = [node.op for node in graph.nodes if node.op != "extern"]
    assert ops[-2:] == ["convert", "permute"]
    product = graph.nodes[-1]
    assert graph.nodes[-2].results[0] in [arg.value for arg in product.args if isinstance(arg, Ref)]


def test_a_transposed_matrix_that_others_read_stays_as_it_is() -> None:
    text = TRANSPOSED.format(more=", %3: bf16[32, 16]@[16, 1]")
    graph = parse_graph(text)
    assert simplify_algebra(graph) is graph
