"""Which values are stored in memory, in which memory, and what extern steps read."""

from __future__ import annotations

import pytest

from kernelfarm.ir.graph_ir import contiguous_strides
from kernelfarm.ir.loop_ir import Load
from kernelfarm.ir.text import parse_graph
from optimizer_svc.passes.choose_materialized import choose_materialized
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import SOFTMAX, before_and_after
from tests.support.prims_graphs import (
    Maker,
    launches,
    only_kernel,
    program_of,
    sizes,
    tensor,
    tensor_with_strides,
)


@pytest.mark.golden
def test_reductions_and_costly_values_with_two_readers_are_stored() -> None:
    # The exponential is stored, because the sum and the quotient would compute it twice.
    assert_golden(
        before_and_after("choose-materialized", SOFTMAX),
        """\
-- before choose-materialized: graph
graph prims 1
size s0 from 2
%0: f32[s0, 8]@[8, 1] = input "x"
%1: f32[s0] = amax(%0; dims=[1]) from [0]
%2: f32[s0, 8] = broadcast_in_dim(%1; dims=[0], shape=[{s0}, {8}]) from [0]
%3: f32[s0, 8] = sub(%0, %2) from [0]
%4: f32[s0, 8] = exp(%3) from [0]
%5: f32[s0] = sum(%4; dims=[1]) from [0]
%6: f32[s0, 8] = broadcast_in_dim(%5; dims=[0], shape=[{s0}, {8}]) from [0]
%7: f32[s0, 8] = div(%4, %6) from [0]
return %7: f32[s0, 8]@[8, 1]
-- after: chosen
storage %0: input 0, f32[s0, 8]@[8, 1]
storage %1: temporary, f32[s0]@[1]
storage %4: temporary, f32[s0, 8]@[8, 1]
storage %5: temporary, f32[s0]@[1]
storage %7: output 0, f32[s0, 8]@[8, 1]
members: %1, %4, %5, %7
output 0: %7 as [s0, 8]@[8, 1]
""",
    )


SAVED_OPERAND = """\
graph prims 1
%0: f32[2, 3, 8]@[24, 8, 1] = input "x"
%1: f32[8, 4]@[4, 1] = input "w"
%2: f32[2, 3, 8] = exp(%0)
%3: f32[6, 8] = reshape(%2; shape=[{6}, {8}])
%4: f32[6, 4]@[4, 1] = extern(%3, %1; is_contraction=true, node=0, op="aten.mm.default")
%5: f32[48] = reshape(%2; shape=[{48}])
return %4: f32[6, 4]@[4, 1], %5: f32[48]@[1]
"""
"""A product's operand, which is returned in another shape."""


@pytest.mark.golden
def test_an_output_that_reshapes_an_operand_is_stored_once() -> None:
    assert_golden(
        before_and_after("choose-materialized", SAVED_OPERAND),
        """\
-- before choose-materialized: graph
graph prims 1
%0: f32[2, 3, 8]@[24, 8, 1] = input "x"
%1: f32[8, 4]@[4, 1] = input "w"
%2: f32[2, 3, 8] = exp(%0)
%3: f32[6, 8] = reshape(%2; shape=[{6}, {8}])
%4: f32[6, 4]@[4, 1] = extern(%3, %1; is_contraction=true, node=0, op="aten.mm.default")
%5: f32[48] = reshape(%2; shape=[{48}])
return %4: f32[6, 4]@[4, 1], %5: f32[48]@[1]
-- after: chosen
storage %0: input 0, f32[2, 3, 8]@[24, 8, 1]
storage %1: input 1, f32[8, 4]@[4, 1]
storage %2: output 1, f32[2, 3, 8]@[24, 8, 1]
storage %4: extern, f32[6, 4]@[4, 1]
members: %2
operand %1: %1 as [8, 4]@[4, 1]
operand %3: %2 as [6, 8]@[8, 1]
output 0: %4 as [6, 4]@[4, 1]
output 1: %2 as [48]@[1]
""",
    )


def test_two_outputs_that_reshape_one_value_have_memory_of_their_own() -> None:
    twice = SAVED_OPERAND.replace("%5: f32[48]@[1]", "%5: f32[48]@[1], %3: f32[6, 8]@[8, 1]")
    text = before_and_after("choose-materialized", twice)
    assert "storage %2: output 1" in text and "storage %3: output 2" in text


def test_an_output_in_another_order_has_memory_of_its_own() -> None:
    turned = SAVED_OPERAND.replace(
        "%5: f32[48] = reshape(%2; shape=[{48}])", "%5: f32[8, 6] = permute(%3; dims=[1, 0])"
    ).replace("%5: f32[48]@[1]", "%5: f32[8, 6]@[6, 1]")
    assert "storage %5: output 1" in before_and_after("choose-materialized", turned)


CHEAP_WITH_TWO_READERS = """\
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = add(%0, %0)
%2: f32[4] = neg(%1)
%3: f32[4] = abs(%1)
return %2: f32[4]@[1], %3: f32[4]@[1]
"""


@pytest.mark.golden
def test_a_cheap_value_with_two_readers_is_computed_twice_instead_of_stored() -> None:
    assert_golden(
        before_and_after("choose-materialized", CHEAP_WITH_TWO_READERS),
        """\
-- before choose-materialized: graph
graph prims 1
%0: f32[4]@[1] = input "x"
%1: f32[4] = add(%0, %0)
%2: f32[4] = neg(%1)
%3: f32[4] = abs(%1)
return %2: f32[4]@[1], %3: f32[4]@[1]
-- after: chosen
storage %0: input 0, f32[4]@[1]
storage %2: output 0, f32[4]@[1]
storage %3: output 1, f32[4]@[1]
members: %2, %3
output 0: %2 as [4]@[1]
output 1: %3 as [4]@[1]
""",
    )


SCATTER = """\
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = neg(%0)
%4: f32[6, 4] = scatter(%3, %1, %2; dims=[0], mode="add")
%5: f32[6] = sum(%4; dims=[1])
return %5: f32[6]@[1]
"""


@pytest.mark.golden
def test_a_scatter_and_its_base_share_one_storage() -> None:
    assert_golden(
        before_and_after("choose-materialized", SCATTER),
        """\
-- before choose-materialized: graph
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = neg(%0)
%4: f32[6, 4] = scatter(%3, %1, %2; dims=[0], mode="add")
%5: f32[6] = sum(%4; dims=[1])
return %5: f32[6]@[1]
-- after: chosen
storage %0: input 0, f32[6, 4]@[4, 1]
storage %1: input 1, i64[2]@[1]
storage %2: input 2, f32[2, 4]@[4, 1]
storage %3: temporary of %4, f32[6, 4]@[4, 1]
storage %4: temporary, f32[6, 4]@[4, 1]
storage %5: output 0, f32[6]@[1]
members: %3, %4, %5
output 0: %5 as [6]@[1]
""",
    )


CACHE_UPDATE = """\
graph prims 1
%0: f32[8, 4]@[4, 1] = input "cache"
%1: i64[2]@[1] = input "position"
%2: f32[2, 4]@[4, 1] = input "new"
%3: f32[8, 4] = scatter(%0, %1, %2; dims=[0], mode="set")
return %3: f32[8, 4]@[4, 1] into %0
"""


@pytest.mark.golden
def test_an_update_is_stored_in_its_input() -> None:
    assert_golden(
        before_and_after("choose-materialized", CACHE_UPDATE),
        """\
-- before choose-materialized: graph
graph prims 1
%0: f32[8, 4]@[4, 1] = input "cache"
%1: i64[2]@[1] = input "position"
%2: f32[2, 4]@[4, 1] = input "new"
%3: f32[8, 4] = scatter(%0, %1, %2; dims=[0], mode="set")
return %3: f32[8, 4]@[4, 1] into %0
-- after: chosen
storage %0: input 0, f32[8, 4]@[4, 1]
storage %1: input 1, i64[2]@[1]
storage %2: input 2, f32[2, 4]@[4, 1]
storage %3: input 0, f32[8, 4]@[4, 1]
members: %3
output 0: %3 as [8, 4]@[4, 1]
""",
    )


SLICED_OPERAND = """\
graph prims 1
%0: f32[1, 4, 6]@[24, 6, 1] = input "x"
%1: f32[1, 2, 3] = slice(%0; limits=[{1}, {3}, {6}], starts=[{0}, {1}, {0}], steps=[{1}, {1}, {2}])
%2: f32[2, 3] = reshape(%1; shape=[{2}, {3}])
%3: f32[3, 2] = permute(%2; dims=[1, 0])
%4: f32[3, 2]@[2, 1] = extern(%3; is_contraction=true, node=0, op="aten.mm.default")
return %4: f32[3, 2]@[2, 1]
"""


@pytest.mark.golden
def test_a_matrix_product_reads_a_view_of_an_input_in_place() -> None:
    assert_golden(
        before_and_after("choose-materialized", SLICED_OPERAND),
        """\
-- before choose-materialized: graph
graph prims 1
%0: f32[1, 4, 6]@[24, 6, 1] = input "x"
%1: f32[1, 2, 3] = slice(%0; limits=[{1}, {3}, {6}], starts=[{0}, {1}, {0}], steps=[{1}, {1}, {2}])
%2: f32[2, 3] = reshape(%1; shape=[{2}, {3}])
%3: f32[3, 2] = permute(%2; dims=[1, 0])
%4: f32[3, 2]@[2, 1] = extern(%3; is_contraction=true, node=0, op="aten.mm.default")
return %4: f32[3, 2]@[2, 1]
-- after: chosen
storage %0: input 0, f32[1, 4, 6]@[24, 6, 1]
storage %4: extern, f32[3, 2]@[2, 1]
members: 
operand %3: %0 as [3, 2]@[2, 6] from 6
output 0: %4 as [3, 2]@[2, 1]
""",
    )


FLATTENED_OPERAND = """\
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[6, 4] = permute(%0; dims=[1, 0])
%2: f32[24] = reshape(%1; shape=[{24}])
%3: f32[1]@[1] = extern(%2; is_contraction=true, node=0, op="aten.dot.default")
return %3: f32[1]@[1]
"""


@pytest.mark.golden
def test_an_operand_that_is_no_strided_view_is_stored() -> None:
    assert_golden(
        before_and_after("choose-materialized", FLATTENED_OPERAND),
        """\
-- before choose-materialized: graph
graph prims 1
%0: f32[4, 6]@[6, 1] = input "x"
%1: f32[6, 4] = permute(%0; dims=[1, 0])
%2: f32[24] = reshape(%1; shape=[{24}])
%3: f32[1]@[1] = extern(%2; is_contraction=true, node=0, op="aten.dot.default")
return %3: f32[1]@[1]
-- after: chosen
storage %0: input 0, f32[4, 6]@[6, 1]
storage %1: temporary, f32[6, 4]@[4, 1]
storage %3: extern, f32[1]@[1]
members: %1
operand %2: %1 as [24]@[1]
output 0: %3 as [1]@[1]
""",
    )


TURNED_OPERANDS = """\
graph prims 1
%0: f32[2, 3, 5, 8]@[120, 40, 8, 1] = input "x"
%1: f32[24, 4]@[4, 1] = input "w"
%2: f32[4, 10]@[10, 1] = input "g"
%3: f32[2, 3, 1, 5, 8] = reshape(%0; shape=[{2}, {3}, {1}, {5}, {8}])
%4: f32[2, 3, 1, 5, 8] = exp(%3)
%5: f32[2, 3, 5, 8] = reshape(%4; shape=[{2}, {3}, {5}, {8}])
%6: f32[2, 5, 3, 8] = permute(%5; dims=[0, 2, 1, 3])
%7: f32[10, 24] = reshape(%6; shape=[{10}, {24}])
%8: f32[24, 10] = permute(%7; dims=[1, 0])
%9: f32[10, 4]@[4, 1] = extern(%7, %1; is_contraction=true, node=0, op="aten.mm.default")
%10: f32[24, 4]@[4, 1] = extern(%8, %9; is_contraction=true, node=1, op="aten.mm.default")
return %9: f32[10, 4]@[4, 1], %10: f32[24, 4]@[4, 1]
"""


@pytest.mark.golden
def test_operands_that_are_views_in_another_order_of_axes_are_stored_in_that_order() -> None:
    assert_golden(
        before_and_after("choose-materialized", TURNED_OPERANDS).partition("-- after")[2],
        """\
: chosen
storage %0: input 0, f32[2, 3, 5, 8]@[120, 40, 8, 1]
storage %1: input 1, f32[24, 4]@[4, 1]
storage %2: input 2, f32[4, 10]@[10, 1]
storage %4: temporary, f32[2, 3, 1, 5, 8]@[120, 8, 40, 24, 1]
storage %9: extern, f32[10, 4]@[4, 1]
storage %10: extern, f32[24, 4]@[4, 1]
members: %4
operand %1: %1 as [24, 4]@[4, 1]
operand %7: %4 as [10, 24]@[24, 1]
operand %8: %4 as [24, 10]@[1, 24]
operand %9: %9 as [10, 4]@[4, 1]
output 0: %9 as [10, 4]@[4, 1]
output 1: %10 as [24, 4]@[4, 1]
""",
    )


def test_a_product_and_its_gradient_share_the_memory_of_an_operand_that_is_turned() -> None:
    (kernel,) = program_of(parse_graph(TURNED_OPERANDS)).kernels
    assert len(kernel.params) == 2


def test_rows_do_not_become_columns_for_an_operand() -> None:
    make = Maker()
    x = make.add("exp", make.add_input(tensor(4, 6, 8)))
    turned = make.add("permute", x, dims=(2, 1, 0))
    flat = make.add("reshape", turned, shape=sizes(8, 24))
    w = make.add_input(tensor(24, 5))
    kind = tensor_with_strides(8, 5)
    (y,) = make.add_extern("aten.mm.default", 0, [flat, w], [kind], is_contraction=True)
    storages = choose_materialized(make.returning(y)).storages
    assert x not in storages
    assert storages[turned].strides == contiguous_strides(sizes(8, 6, 4))


def test_only_a_matrix_product_reads_a_transposed_operand_in_place() -> None:
    for op, count in (("aten.mm.default", 0), ("aten._scaled_dot_product_attention.default", 1)):
        make = Maker()
        turned = make.add("permute", make.add_input(tensor(4, 6)), dims=(1, 0))
        kind = tensor_with_strides(6, 4)
        (y,) = make.add_extern(op, 0, [turned], [kind], is_contraction=True)
        assert len(launches(program_of(make.returning(y)))) == count


def _costly_then_gated(make: Maker) -> tuple[int, int]:
    """A value of four tensors, and the value times its sigmoid."""
    a, b, c, d = (make.add_input(tensor(32, 32)) for _ in range(4))
    costly = make.add("div", make.add("add", make.add("mul", a, b), c), d)
    return costly, make.add("mul", costly, make.add("sigmoid", costly))


def _padded(make: Maker, value: int) -> int:
    return make.add("pad", value, low=sizes(1, 1), high=sizes(1, 1), value=0.0)


def test_a_costly_value_is_not_stored_if_all_its_readers_are_computed_together() -> None:
    make = Maker()
    _, gated = _costly_then_gated(make)
    kernel = only_kernel(make.returning(_padded(make, gated)))
    assert sum(isinstance(s, Load) for s in kernel.body) == 4


def test_a_costly_value_with_another_reader_is_not_computed_twice() -> None:
    make = Maker()
    costly, gated = _costly_then_gated(make)
    total = make.add("sum", costly, dims=(1,))
    program = program_of(make.returning(_padded(make, gated), total))
    assert len(launches(program)) == 2
    loads = [sum(isinstance(s, Load) for s in kernel.body) for kernel in program.kernels]
    assert sorted(loads) == [1, 4]
