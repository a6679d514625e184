"""Each materialized value becomes a loop nest."""

from __future__ import annotations

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.loop_ir import Compute, Indirect, Load
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import SOFTMAX, before_and_after
from tests.support.prims_graphs import Maker, only_kernel, sizes, tensor


@pytest.mark.golden
def test_softmax_is_a_nest_for_each_stored_value() -> None:
    assert_golden(
        before_and_after("lower-nests", SOFTMAX),
        """\
-- before lower-nests: chosen
storage %0: input 0, f32[s0, 8]@[8, 1]
storage %1: temporary, f32[s0]@[1]
storage %4: temporary, f32[s0, 8]@[8, 1]
storage %5: temporary, f32[s0]@[1]
storage %7: output 0, f32[s0, 8]@[8, 1]
members: %1, %4, %5, %7
output 0: %7 as [s0, 8]@[8, 1]
-- after: nests
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
""",
    )


CAT = """\
graph prims 1
%0: f32[4, 2]@[2, 1] = input "x"
%1: f32[4, 3]@[3, 1] = input "y"
%2: f32[4, 5] = cat(%0, %1; dim=1)
%3: f32[4, 5] = neg(%2)
return %3: f32[4, 5]@[5, 1]
"""


@pytest.mark.golden
def test_each_piece_of_a_cat_is_read_under_a_mask() -> None:
    assert_golden(
        before_and_after("lower-nests", CAT),
        """\
-- before lower-nests: chosen
storage %0: input 0, f32[4, 2]@[2, 1]
storage %1: input 1, f32[4, 3]@[3, 1]
storage %3: output 0, f32[4, 5]@[5, 1]
members: %3
output 0: %3 as [4, 5]@[5, 1]
note: cat of 2 pieces (no captured node): selected where it is read: at most 8 pieces
-- after: nests
nest %3: f32, for x0 in 4, for x1 in 5
  0: i64 index x1
  1: i64 2
  2: bool ge 0, 1
  3: f32 0.0
  4: read %1[x0, x1 - 2] if 2 else 3
  5: bool lt 0, 1
  6: read %0[x0, x1] if 5 else 3
  7: f32 where 5, 6, 4
  8: f32 neg 7
  store %3[x0, x1] = 8
""",
    )


SCATTER = """\
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = neg(%0)
%4: f32[6, 4] = scatter(%3, %1, %2; dims=[0], mode="add")
return %4: f32[6, 4]@[4, 1]
"""


@pytest.mark.golden
def test_a_scatter_loops_over_its_updates() -> None:
    assert_golden(
        before_and_after("lower-nests", SCATTER),
        """\
-- before lower-nests: chosen
storage %0: input 0, f32[6, 4]@[4, 1]
storage %1: input 1, i64[2]@[1]
storage %2: input 2, f32[2, 4]@[4, 1]
storage %3: output 0 of %4, f32[6, 4]@[4, 1]
storage %4: output 0, f32[6, 4]@[4, 1]
members: %3, %4
output 0: %4 as [6, 4]@[4, 1]
-- after: nests
nest %3: f32, for x0 in 6, for x1 in 4
  0: read %0[x0, x1]
  1: f32 neg 0
  store %3[x0, x1] = 1
nest %4: f32, for x0 in 2, for x1 in 4
  0: read %1[x0]
  1: #1 = indirect 0 in 6
  2: read %2[x0, x1]
  store add %4[#1, x1] = 2
""",
    )


WITHOUT_ELEMENTS = """\
graph prims 1
%0: f32[0, 3]@[3, 1] = input "x"
%1: f32[0, 3] = exp(%0)
%2: f32[3] = sum(%1; dims=[0])
return %1: f32[0, 3]@[3, 1], %2: f32[3]@[1]
"""


@pytest.mark.golden
def test_a_value_without_elements_has_no_nest() -> None:
    assert_golden(
        before_and_after("lower-nests", WITHOUT_ELEMENTS),
        """\
-- before lower-nests: chosen
storage %0: input 0, f32[0, 3]@[3, 1]
storage %1: output 0, f32[0, 3]@[3, 1]
storage %2: output 1, f32[3]@[1]
members: %1, %2
output 0: %1 as [0, 3]@[3, 1]
output 1: %2 as [3]@[1]
-- after: nests
nest %2: f32, for x0 in 3
  0: f32 0.0
  store %2[x0] = 0
""",
    )


def test_a_piece_of_a_cat_that_a_slice_cuts_off_is_not_read() -> None:
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
