"""Which nests become one kernel, which do not, and the reason that the report gives."""

from __future__ import annotations

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Load, Reduce, Store
from kernelfarm.ir.text import print_kernel
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import SOFTMAX, before_and_after
from tests.support.prims_graphs import (
    Maker,
    launches,
    layer_norm,
    only_kernel,
    program_of,
    report_of,
    sizes,
    softmax,
    tensor,
    tensor_with_strides,
)


@pytest.mark.golden
def test_the_nests_of_softmax_are_one_group() -> None:
    assert_golden(
        before_and_after("fuse-nests", SOFTMAX),
        """\
-- before fuse-nests: nests
nest %1: f32, for x0 in s0, reduce r0 in 8
  0: read %0[x0, r0]
  1: f32 amax 0
  store %1[x0] = 1
nest %4: f32, for x0 in s0, for x1 in 8
  0: read %0[x0, x1]
  1: read %1[x0]
  2: f32 sub 0, 1
  3: f32 exp 2
  store %4[x0, x1] = 3
nest %5: f32, for x0 in s0, reduce r0 in 8
  0: read %4[x0, r0]
  1: f32 sum 0
  store %5[x0] = 1
nest %7: f32, for x0 in s0, for x1 in 8
  0: read %4[x0, x1]
  1: read %5[x0]
  2: f32 div 0, 1
  store %7[x0, x1] = 2
-- after: fusion
group: for v1.x0 in s0, reduce v1.r0 in 8
  %1[v1.x0]
  %4[v1.x0, v1.r0]
  %5[v1.x0]
  %7[v1.x0, v1.r0]
  reads %0[v1.x0, v1.r0]
  reads %1[v1.x0]
  reads %4[v1.x0, v1.r0]
  reads %5[v1.x0]
stored: %7
""",
    )


SHIFTED = """\
graph prims 1
%0: f32[100]@[1] = input "x"
%1: f32[100] = exp(%0)
%2: f32[99] = slice(%1; limits=[{99}], starts=[{0}], steps=[{1}])
%3: f32[99] = slice(%1; limits=[{100}], starts=[{1}], steps=[{1}])
%4: f32[99] = sub(%3, %2)
return %4: f32[99]@[1]
"""


@pytest.mark.golden
def test_a_shifted_read_is_refused_with_its_reason() -> None:
    assert_golden(
        before_and_after("fuse-nests", SHIFTED),
        """\
-- before fuse-nests: nests
nest %1: f32, for x0 in 100
  0: read %0[x0]
  1: f32 exp 0
  store %1[x0] = 1
nest %4: f32, for x0 in 99
  0: read %1[x0 + 1]
  1: read %1[x0]
  2: f32 sub 0, 1
  store %4[x0] = 2
-- after: fusion
group: for v1.x0 in 100
  %1[v1.x0]
  reads %0[v1.x0]
group: for v4.x0 in 99
  %4[v4.x0]
  reads %1[v4.x0 + 1]
  reads %1[v4.x0]
stored: %1, %4
refused: %1 with %4: extents 100 and 99 have no common factor
""",
    )


AROUND_AN_EXTERN_STEP = """\
graph prims 1
%0: f32[8, 8]@[8, 1] = input "x"
%1: f32[8, 8] = exp(%0)
%2: f32[8, 8]@[8, 1] = extern(%1, %0; is_contraction=true, node=0, op="aten.mm.default")
%3: f32[8, 8] = add(%1, %2)
return %3: f32[8, 8]@[8, 1]
"""


@pytest.mark.golden
def test_a_group_is_not_fused_around_an_extern_step() -> None:
    assert_golden(
        before_and_after("fuse-nests", AROUND_AN_EXTERN_STEP),
        """\
-- before fuse-nests: nests
nest %1: f32, for x0 in 8, for x1 in 8
  0: read %0[x0, x1]
  1: f32 exp 0
  store %1[x0, x1] = 1
nest %3: f32, for x0 in 8, for x1 in 8
  0: read %1[x0, x1]
  1: read %2[x0, x1]
  2: f32 add 0, 1
  store %3[x0, x1] = 2
-- after: fusion
group: for v1.x0 in 8, for v1.x1 in 8
  %1[v1.x0, v1.x1]
  reads %0[v1.x0, v1.x1]
extern aten.mm.default -> %2
group: for v3.x0 in 8, for v3.x1 in 8
  %3[v3.x0, v3.x1]
  reads %1[v3.x0, v3.x1]
  reads %2[v3.x0, v3.x1]
stored: %1, %3
refused: %1 with %3: another kernel or extern step lies between them
""",
    )


@pytest.mark.golden
def test_layer_norm_and_silu_are_one_kernel() -> None:
    make = Maker()
    x, weight, bias = (make.add_input(tensor(*shape)) for shape in ((32, 128), (128,), (128,)))
    y = layer_norm(make, x, weight, bias)
    kernel = only_kernel(make.returning(make.add("mul", y, make.add("sigmoid", y))))
    assert_golden(
        print_kernel(kernel),
        """\
kernel fused_sum_mul_rsqrt_sigmoid_NAME
param in in0: f32[4096]
param in in1: f32[128]
param in in2: f32[128]
param out out0: f32[4096]
for d0 in 32
reduce r0 in 128
  %0: f32 = load in0[128*d0 + r0]
  %1: f32 = sum %0
  %2: f32 = 0.0078125
  %3: f32 = mul %1, %2
  %4: f32 = sub %0, %3
  %5: f32 = mul %4, %4
  %6: f32 = sum %5
  %7: f32 = mul %6, %2
  %8: f32 = 1e-05
  %9: f32 = add %7, %8
  %10: f32 = rsqrt %9
  %11: f32 = mul %4, %10
  %12: f32 = load in1[r0]
  %13: f32 = mul %11, %12
  %14: f32 = load in2[r0]
  %15: f32 = add %13, %14
  %16: f32 = sigmoid %15
  %17: f32 = mul %15, %16
  store out0[128*d0 + r0] = %17
""",
    )


def test_softmax_is_one_kernel_that_computes_each_exponential_once() -> None:
    make = Maker()
    kernel = only_kernel(make.returning(softmax(make, make.add_input(tensor(64, 100)), 64, 100)))
    ops = [getattr(statement, "op", "") for statement in kernel.body]
    assert ops.count("exp") == 1
    assert [s.op for s in kernel.body if isinstance(s, Reduce)] == ["amax", "sum"]
    assert sum(isinstance(s, Store) for s in kernel.body) == 1


def test_softmax_of_a_symbolic_matrix_is_one_kernel() -> None:
    make = Maker([SizeSymbol("s0", 2, None), SizeSymbol("s1", 2, None)])
    rows, width = symbol("s0"), symbol("s1")
    x = make.add_input(tensor(rows, width))
    kernel = only_kernel(make.returning(softmax(make, x, rows, width)))
    assert [size.name for size in kernel.sizes] == ["s0", "s1"]


def test_a_reduced_axis_in_front_fuses_with_its_reader() -> None:
    make = Maker()
    x = make.add_input(tensor(16, 40))
    mean = make.spread(make.add("sum", x, dims=(0,)), (1,), 16, 40)
    kernel = only_kernel(make.returning(make.add("sub", x, mean)))
    assert [axis.extent for axis in kernel.outer] == [40]
    assert [axis.extent for axis in kernel.reduction] == [16]


def test_a_reader_in_another_shape_fuses_through_the_reshape() -> None:
    make = Maker()
    x = make.add_input(tensor(1, 64, 128))
    total = make.add("sum", x, dims=(2,))
    flat = make.add("reshape", x, shape=sizes(64, 128))
    row = make.add("reshape", total, shape=sizes(64))
    kernel = only_kernel(make.returning(make.add("mul", flat, make.spread(row, (0,), 64, 128))))
    assert [axis.extent for axis in (*kernel.outer, *kernel.reduction)] == [64, 128]


def test_rows_split_by_the_reader_are_split_in_the_kernel() -> None:
    make = Maker()
    x = make.add_input(tensor(64, 128))
    total = make.add("reshape", make.add("sum", x, dims=(1,)), shape=sizes(4, 16))
    heads = make.add("permute", make.add("reshape", x, shape=sizes(4, 16, 128)), dims=(1, 0, 2))
    spread = make.spread(make.add("permute", total, dims=(1, 0)), (0, 1), 16, 4, 128)
    kernel = only_kernel(make.returning(make.add("mul", heads, spread)))
    assert {axis.extent for axis in kernel.outer} == {as_expr(4), as_expr(16)}


def test_sibling_reductions_read_their_input_once() -> None:
    make = Maker()
    x = make.add_input(tensor(64, 128))
    kernel = only_kernel(
        make.returning(make.add("sum", x, dims=(1,)), make.add("amax", x, dims=(1,)))
    )
    assert sum(isinstance(s, Load) for s in kernel.body) == 1


def test_a_value_that_only_its_own_kernel_reads_is_never_stored() -> None:
    make = Maker()
    x = make.add_input(tensor(64, 100))
    program = program_of(make.returning(softmax(make, x, 64, 100)))
    assert program.plan.arena_bytes == 0


def test_independent_loops_over_one_domain_that_feed_one_call_are_one_kernel() -> None:
    make = Maker()
    q, k = (make.add_input(tensor(1, 4, 8, 16)) for _ in range(2))
    found = [make.add("neg", q), make.add("exp", k)]
    (result,) = make.add_extern(
        "aten.attend.default",
        5,
        found,
        [tensor_with_strides(1, 4, 8, 16)],
        is_contraction=True,
    )
    program = program_of(make.returning(result))
    assert len(launches(program)) == 1
    assert len(launches(program)[0].buffers) == 4


def test_few_long_rows_are_not_fused() -> None:
    make = Maker()
    x = make.add_input(tensor(2, 1 << 20))
    graph = make.returning(softmax(make, x, 2, 1 << 20))
    assert len(launches(program_of(graph))) > 1
    assert "too few to work in parallel" in report_of(graph)


def test_a_body_stays_below_the_limit() -> None:
    make = Maker()
    x = make.add_input(tensor(64))
    for _ in range(500):
        x = make.add("tanh", make.add("sin", x))
    program = program_of(make.returning(x))
    assert len(launches(program)) > 1
    assert all(len(kernel.body) <= 400 for kernel in program.kernels)


def test_a_half_precision_value_keeps_a_rounding_that_the_program_asks_for() -> None:
    make = Maker()
    x = make.add_input(tensor(32, dtype=DType.F16))
    wide = make.add("convert", x, dtype=DType.F32)
    rounded = make.add("convert", make.add("exp", wide), dtype=DType.F16, is_cast=True)
    again = make.add("sin", make.add("convert", rounded, dtype=DType.F32))
    kernel = only_kernel(make.returning(make.add("convert", again, dtype=DType.F16)))
    ops = [getattr(statement, "op", "") for statement in kernel.body]
    assert ops.count("convert") == 4


def test_members_keep_the_order_of_the_graph_after_a_pass_renumbers_values() -> None:
    # The division becomes a new node, whose value has a higher number than its reader.
    make = Maker()
    x = make.add_input(tensor(5))
    halved = make.add("div", x, make.full(2.0, 5))
    total = make.add("sum", halved, dims=(0,))
    kernel = only_kernel(make.returning(total, halved))
    loads = [s.param for s in kernel.body if isinstance(s, Load)]
    stores = [s.param for s in kernel.body if isinstance(s, Store)]
    assert not set(loads) & set(stores)


def test_a_value_that_only_empty_values_read_is_not_computed() -> None:
    make = Maker()
    weights = make.add("sum", make.add("exp", make.add_input(tensor(3, 5))), dims=(1,))
    empty = make.add("mul", make.spread(weights, (1,), 0, 3), make.add_input(tensor(0, 3)))
    assert program_of(make.returning(empty)).kernels == ()
