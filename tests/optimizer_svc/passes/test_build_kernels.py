"""Groups become kernels in canonical form, and equal kernels become one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import Ref, SizeSymbol, TensorType
from kernelfarm.ir.loop_ir import Load
from kernelfarm.ir.text import print_kernel
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import (
    Maker,
    launches,
    layer_norm,
    only_kernel,
    program_of,
    sizes,
    tensor,
    tensor_with_strides,
)

EQUAL_LAYERS = """\
graph prims 1
%0: f32[4, 4]@[4, 1] = input "x"
%1: f32[4, 4] = exp(%0)
%2: f32[4, 4]@[4, 1] = extern(%1, %0; is_contraction=true, node=0, op="aten.mm.default")
%3: f32[4, 4] = exp(%2)
return %3: f32[4, 4]@[4, 1]
"""


@pytest.mark.golden
def test_equal_groups_become_one_kernel_with_two_launches() -> None:
    assert_golden(
        before_and_after("build-kernels", EQUAL_LAYERS),
        """\
-- before build-kernels: fusion
group: for v1.x0 in 4, for v1.x1 in 4
  %1[v1.x0, v1.x1]
  reads %0[v1.x0, v1.x1]
extern aten.mm.default -> %2
group: for v3.x0 in 4, for v3.x1 in 4
  %3[v3.x0, v3.x1]
  reads %2[v3.x0, v3.x1]
stored: %1, %3
refused: %1 with %3: another kernel or extern step lies between them
-- after: built
kernel fused_exp_NAME
param in in0: f32[16]
param out out0: f32[16]
for d0 in 16
  %0: f32 = load in0[d0]
  %1: f32 = exp %0
  store out0[d0] = %1
step: launch 0(%0, %1)
step: extern aten.mm.default -> %2
step: launch 0(%2, %3)
""",
    )


OTHER_LAYERS = """\
graph prims 1
%0: f32[4, 4]@[4, 1] = input "x"
%1: f32[4, 4] = exp(%0)
%2: f32[4, 4]@[4, 1] = extern(%1, %0; is_contraction=true, node=0, op="aten.mm.default")
%3: f32[4, 4] = sin(%2)
return %3: f32[4, 4]@[4, 1]
"""


@pytest.mark.golden
def test_groups_that_differ_in_one_operation_stay_two_kernels() -> None:
    assert_golden(
        before_and_after("build-kernels", OTHER_LAYERS),
        """\
-- before build-kernels: fusion
group: for v1.x0 in 4, for v1.x1 in 4
  %1[v1.x0, v1.x1]
  reads %0[v1.x0, v1.x1]
extern aten.mm.default -> %2
group: for v3.x0 in 4, for v3.x1 in 4
  %3[v3.x0, v3.x1]
  reads %2[v3.x0, v3.x1]
stored: %1, %3
refused: %1 with %3: another kernel or extern step lies between them
-- after: built
kernel fused_exp_NAME
param in in0: f32[16]
param out out0: f32[16]
for d0 in 16
  %0: f32 = load in0[d0]
  %1: f32 = exp %0
  store out0[d0] = %1
kernel fused_sin_NAME
param in in0: f32[16]
param out out0: f32[16]
for d0 in 16
  %0: f32 = load in0[d0]
  %1: f32 = sin %0
  store out0[d0] = %1
step: launch 0(%0, %1)
step: extern aten.mm.default -> %2
step: launch 1(%2, %3)
""",
    )


def test_equal_layers_share_one_kernel() -> None:
    make = Maker()
    x = make.add_input(tensor(32, 128))
    for layer in range(3):
        weight, bias = make.add_input(tensor(128)), make.add_input(tensor(128))
        kind = tensor_with_strides(32, 128)
        (x,) = make.add_extern("aten.mm.default", layer, [x], [kind], is_contraction=True)
        x = layer_norm(make, x, weight, bias)
    program = program_of(make.returning(x))
    assert len(launches(program)) == 3
    assert len(program.kernels) == 1


def test_equal_kernels_of_different_sizes_share_one_symbolic_kernel() -> None:
    make = Maker([SizeSymbol("s0", 2, None), SizeSymbol("s1", 2, None)])
    a, b = make.add_input(tensor(symbol("s0"))), make.add_input(tensor(symbol("s1")))
    program = program_of(make.returning(make.add("exp", a), make.add("exp", b)))
    assert len(program.kernels) == 1
    assert [step.sizes for step in launches(program)] == [(symbol("s0"),), (symbol("s1"),)]


def test_contiguous_axes_are_one_loop() -> None:
    make = Maker()
    kernel = only_kernel(make.returning(make.add("exp", make.add_input(tensor(3, 4, 5)))))
    assert [(axis.name, axis.extent) for axis in kernel.outer] == [("d0", 60)]


def test_symbolic_contiguous_axes_are_one_loop() -> None:
    make = Maker([SizeSymbol("s0", 2, None)])
    size = symbol("s0")
    kernel = only_kernel(make.returning(make.add("exp", make.add_input(tensor(3, size, size)))))
    assert [axis.extent for axis in kernel.outer] == [size * size * 3]


def test_the_innermost_loop_is_the_one_that_moves_the_fewest_bytes() -> None:
    """Four vectors of 64 elements do not outvote two tensors of 400,000."""
    make = Maker()
    x = make.add_input(tensor_with_strides(8, 64, 784))
    for op in ("sub", "mul", "mul", "add"):
        vector = make.add_input(tensor_with_strides(64))
        x = make.add(op, x, make.spread(vector, (1,), 8, 64, 784))
    kernel = only_kernel(make.returning(x))
    assert [axis.extent for axis in kernel.outer] == [8, 64, 784]
    assert [str(s.index) for s in kernel.body if isinstance(s, Load)].count("d1") == 4


def test_axes_that_are_not_neighbours_merge_if_all_accesses_allow_it() -> None:
    make = Maker()
    turned = TensorType(DType.F32, sizes(6, 64, 4), sizes(4, 24, 1))  # axes 0 and 2 are one run
    result = make.add("exp", make.add_input(turned))
    kernel = only_kernel(make.build([Ref(result)], [turned]))
    assert [axis.extent for axis in kernel.outer] == [64 * 24]


@pytest.mark.golden
def test_a_rotation_of_halves_is_one_kernel_with_masked_loads() -> None:
    make = Maker()
    x = make.add_input(tensor(8, 8))
    low = make.add("slice", x, starts=sizes(0, 0), limits=sizes(8, 4), steps=sizes(1, 1))
    high = make.add("slice", x, starts=sizes(0, 4), limits=sizes(8, 8), steps=sizes(1, 1))
    graph = make.returning(make.add("cat", make.add("neg", high), low, dim=1))
    assert_golden(
        print_kernel(only_kernel(graph)),
        """\
kernel fused_neg_NAME
param in in0: f32[64]
param out out0: f32[64]
for d0 in 8
for d1 in 8
  %0: i64 = index d1
  %1: i64 = 4
  %2: bool = ge %0, %1
  %3: f32 = 0.0
  %4: f32 = load in0[8*d0 + d1 - 4] if %2 else %3
  %5: bool = lt %0, %1
  %6: f32 = load in0[8*d0 + d1 + 4] if %5 else %3
  %7: f32 = neg %6
  %8: f32 = where %5, %7, %4
  store out0[8*d0 + d1] = %8
""",
    )


def test_comments_name_the_captured_operators() -> None:
    make = Maker()
    x = make.add_input(tensor(4))
    with make.origin(17):
        y = make.add("rsqrt", x)
    graph = make.returning(y)
    assert only_kernel(graph).comments == ("captured node 17: rsqrt",)
    names = tuple(f"aten.op{number}.default" for number in range(18))
    kernel = only_kernel(replace(graph, origin_ops=names))
    assert kernel.comments == ("aten.op17 <- captured node 17: rsqrt",)
    assert kernel.name.startswith("fused_rsqrt_")
    assert len(kernel.name) <= 49


def test_an_input_that_repeats_one_element_is_loaded_once_and_summed() -> None:
    make = Maker()
    repeated = TensorType(DType.F32, sizes(3, 4), sizes(0, 1))
    x = make.add_input(repeated)
    kernel = only_kernel(make.returning(make.add("sum", x, dims=(0,))))
    (load,) = (s for s in kernel.body if isinstance(s, Load))
    assert load.index == symbol("d0")
    assert [axis.extent for axis in kernel.reduction] == [3]
