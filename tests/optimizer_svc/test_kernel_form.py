"""The canonical form of kernels: axes, order, masks, indirect indices."""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol, TensorType
from kernelfarm.ir.loop_ir import Compute, Indirect, Load
from kernelfarm.ir.text import print_kernel
from tests.support.prims_graphs import Maker, only_kernel, program_of, sizes, tensor

ROTATE_HALF = """\
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
"""


def test_contiguous_axes_are_one_loop() -> None:
    make = Maker()
    kernel = only_kernel(make.returning(make.add("exp", make.add_input(tensor(3, 4, 5)))))
    assert [(axis.name, axis.extent) for axis in kernel.outer] == [("d0", 60)]


def test_symbolic_contiguous_axes_are_one_loop() -> None:
    make = Maker([SizeSymbol("s0", 2, None)])
    size = symbol("s0")
    kernel = only_kernel(make.returning(make.add("exp", make.add_input(tensor(3, size, size)))))
    assert [axis.extent for axis in kernel.outer] == [size * size * 3]


def test_the_innermost_loop_is_the_one_that_most_accesses_follow() -> None:
    make = Maker()
    turned = TensorType(DType.F32, sizes(6, 4), sizes(1, 6))
    x, y = make.add_input(turned), make.add_input(turned)
    graph = make.returning(make.add("add", x, y))
    kernel = only_kernel(graph)
    assert [axis.extent for axis in kernel.outer] == [4, 6]
    assert all(s.index.coefficient_of("d1") == 1 for s in kernel.body if isinstance(s, Load))


def test_a_cat_reads_each_part_under_its_own_mask() -> None:
    make = Maker()
    x = make.add_input(tensor(8, 8))
    low = make.add("slice", x, starts=sizes(0, 0), limits=sizes(8, 4), steps=sizes(1, 1))
    high = make.add("slice", x, starts=sizes(0, 4), limits=sizes(8, 8), steps=sizes(1, 1))
    kernel = only_kernel(make.returning(make.add("cat", make.add("neg", high), low, dim=1)))
    assert print_kernel(kernel).replace(kernel.name[-8:], "NAME").strip() == ROTATE_HALF.strip()


def test_a_part_of_a_cat_that_a_slice_cuts_off_is_not_read() -> None:
    make = Maker()
    x, y = make.add_input(tensor(4)), make.add_input(tensor(4))
    both = make.add("cat", x, y, dim=0)
    cut = make.add("slice", both, starts=sizes(4), limits=sizes(8), steps=sizes(1))
    kernel = only_kernel(make.returning(make.add("neg", cut)))
    assert [s.mask for s in kernel.body if isinstance(s, Load)] == [None]


def test_a_counted_index_needs_no_check_at_run_time() -> None:
    make = Maker()
    x = make.add_input(tensor(8, 3))
    picks = make.add("iota", dtype=DType.I64, length=as_expr(5))
    kernel = only_kernel(make.returning(make.add("take", x, picks, dim=0)))
    assert not any(isinstance(s, Indirect) for s in kernel.body)


def test_a_masked_integer_division_cannot_divide_by_zero() -> None:
    make = Maker()
    x, y = (make.add_input(tensor(4, dtype=DType.I64)) for _ in range(2))
    part = make.add("floor_div", x, y)
    kernel = only_kernel(
        make.returning(make.add("pad", part, low=sizes(1), high=sizes(0), value=0))
    )
    division = next(s for s in kernel.body if isinstance(s, Compute) and s.op == "floor_div")
    divisor = kernel.body[division.operands[1]]
    assert isinstance(divisor, Compute)
    assert divisor.op == "where"


def test_narrow_values_are_only_converted() -> None:
    make = Maker()
    x, y = (make.add_input(tensor(4, dtype=DType.BF16)) for _ in range(2))
    kernel = only_kernel(make.returning(make.add("where", make.add("lt", x, y), x, y)))
    computed = [s for s in kernel.body if isinstance(s, Compute)]
    assert [s.op for s in computed if s.dtype is DType.BF16] == ["convert"]


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


def test_an_input_that_repeats_one_element_is_read_once_and_still_summed() -> None:
    make = Maker()
    repeated = TensorType(DType.F32, sizes(3, 4), sizes(0, 1))
    x = make.add_input(repeated)
    kernel = only_kernel(make.returning(make.add("sum", x, dims=(0,))))
    (load,) = (s for s in kernel.body if isinstance(s, Load))
    assert load.index == symbol("d0")
    assert [axis.extent for axis in kernel.reduction] == [3]


def test_what_only_an_empty_value_would_read_is_not_computed() -> None:
    make = Maker()
    weights = make.add("sum", make.add("exp", make.add_input(tensor(3, 5))), dims=(1,))
    empty = make.add("mul", make.spread(weights, (1,), 0, 3), make.add_input(tensor(0, 3)))
    assert program_of(make.returning(empty)).kernels == ()
