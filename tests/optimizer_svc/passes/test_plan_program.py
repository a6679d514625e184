"""Buffers, steps and outputs of the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import Constant, Graph, Input, Ref, SizeSymbol, TensorType
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.program_ir import BufferKind
from tests.optimizer_svc.passes.output_views import output_view
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import (
    Maker,
    extern_calls,
    launches,
    program_of,
    sizes,
    tensor,
    tensor_with_strides,
)

FOUR_STEPS = """\
graph prims 1
%0: f32[16, 16]@[16, 1] = input "x"
%1: f32[16, 16] = exp(%0)
%2: f32[16, 16]@[16, 1] = extern(%1, %0; is_contraction=true, node=0, op="aten.mm.default")
%3: f32[16, 16] = exp(%2)
%4: f32[16, 16]@[16, 1] = extern(%3, %0; is_contraction=true, node=1, op="aten.mm.default")
return %4: f32[16, 16]@[16, 1]
"""


@pytest.mark.golden
def test_temporaries_of_different_steps_share_bytes_of_the_arena() -> None:
    assert_golden(
        before_and_after("plan-program", FOUR_STEPS),
        """\
-- before plan-program: built
kernel fused_exp_NAME
param in in0: f32[256]
param out out0: f32[256]
for d0 in 256
  %0: f32 = load in0[d0]
  %1: f32 = exp %0
  store out0[d0] = %1
step: launch 0(%0, %1)
step: extern aten.mm.default -> %2
step: launch 0(%2, %3)
step: extern aten.mm.default -> %4
-- after: program
plan for cpu:x86-64-v3
arena of 1024 bytes
buffer in0: f32[256], input 0
buffer tmp0: f32[256], temporary at byte 0
buffer ext0: f32[256], extern result
buffer tmp1: f32[256], temporary at byte 0
buffer ext1: f32[256], extern result
kernel fused_exp_NAME
  0: launch fused_exp_NAME(in0, tmp0)
  1: ext0: f32[16, 16]@[16, 1] = extern aten.mm.default(tmp0: f32[16, 16]@[16, 1], in0: f32[16, 16]@[16, 1]) of captured node 0, a contraction
  2: launch fused_exp_NAME(ext0, tmp1)
  3: ext1: f32[16, 16]@[16, 1] = extern aten.mm.default(tmp1: f32[16, 16]@[16, 1], in0: f32[16, 16]@[16, 1]) of captured node 1, a contraction
return ext1: f32[16, 16]@[16, 1]
""",
    )


def test_a_kernel_writes_an_output_with_its_stated_strides() -> None:
    make = Maker()
    y = make.add("neg", make.add_input(tensor(4, 6)))
    graph = make.returning(y)
    graph = replace(graph, output_types=(TensorType(DType.F32, sizes(4, 6), sizes(1, 4)),))
    program = program_of(graph)
    assert output_view(program, 0).strides == sizes(1, 4)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(run_program(program, [x])[0], -x)


def test_an_intermediate_that_is_returned_is_not_stored_again() -> None:
    make = Maker()
    y = make.add("exp", make.add_input(tensor(8, 8)))
    (z,) = make.add_extern(
        "aten.mm.default", 0, [y], [tensor_with_strides(8, 8)], is_contraction=True
    )
    program = program_of(make.returning(y, z))
    assert extern_calls(program)[0].args[0].buffer == "out0"
    assert program.plan.arena_bytes == 0


def test_an_extern_step_reads_a_view_of_an_input_without_a_copy() -> None:
    make = Maker()
    x = make.add_input(tensor(1, 4, 6))
    cut = make.add("slice", x, starts=sizes(0, 1, 0), limits=sizes(1, 3, 6), steps=sizes(1, 1, 2))
    turned = make.add("permute", make.add("reshape", cut, shape=sizes(2, 3)), dims=(1, 0))
    (y,) = make.add_extern(
        "aten.mm.default", 0, [turned], [tensor_with_strides(3, 2)], is_contraction=True
    )
    program = program_of(make.returning(y))
    assert not launches(program)
    (view,) = extern_calls(program)[0].args
    assert (view.sizes, view.strides, view.offset_elems) == (sizes(3, 2), sizes(2, 6), 6)


def test_a_reshape_of_a_transposed_operand_is_copied_by_one_kernel() -> None:
    make = Maker()
    x = make.add_input(tensor(4, 6))
    flat = make.add("reshape", make.add("permute", x, dims=(1, 0)), shape=sizes(24))
    (y,) = make.add_extern(
        "aten.dot.default", 0, [flat], [tensor_with_strides(1)], is_contraction=True
    )
    program = program_of(make.returning(y))
    assert len(launches(program)) == 1
    assert extern_calls(program)[0].args[0].buffer == "tmp0"


def test_a_result_without_a_reader_has_no_buffer() -> None:
    make = Maker()
    x = make.add_input(tensor(4))
    kinds = [tensor_with_strides(4), tensor_with_strides(2)]
    y, _ = make.add_extern("aten.two.default", 0, [x], kinds, is_contraction=False)
    program = program_of(make.returning(make.add("neg", y)))
    found = extern_calls(program)[0].results
    assert found[0] is not None
    assert found[1] is None


def test_random_extern_steps_keep_their_order() -> None:
    make = Maker()
    x = make.add_input(tensor(4))
    kind = tensor_with_strides(4)
    late = make.add("exp", x)
    (a,) = make.add_extern("aten.bernoulli.p", 0, [late], [kind], is_contraction=False)
    (b,) = make.add_extern("aten.rand_like.default", 1, [x], [kind], is_contraction=False)
    program = program_of(make.returning(make.add("add", b, a)))
    assert [step.node for step in extern_calls(program)] == [0, 1]


def test_symbolic_temporaries_of_one_size_share_memory() -> None:
    make = Maker([SizeSymbol("s0", 2, None)])
    rows = symbol("s0")
    x = make.add_input(tensor(rows, 4))
    for number in range(4):
        kind = tensor_with_strides(rows, 4)
        y = make.add("exp", x)
        (x,) = make.add_extern("aten.mm.default", number, [y], [kind], is_contraction=True)
    program = program_of(make.returning(x))
    assert program.plan.arena_bytes.evaluate({"s0": 100}) == 1600


def test_a_tensor_without_elements_needs_no_kernel() -> None:
    make = Maker()
    y = make.add("exp", make.add_input(tensor(0, 3)))
    program = program_of(make.returning(y, make.add("sum", y, dims=(0,))))
    assert len(launches(program)) == 1
    results = run_program(program, [np.zeros((0, 3), np.float32)])
    assert results[0].shape == (0, 3)
    np.testing.assert_array_equal(results[1], np.zeros(3))


def test_sizes_and_none_are_returned_as_they_are() -> None:
    make = Maker([SizeSymbol("s0", 2, None)])
    size = make.add_input("s0")
    x = make.add_input(tensor(symbol("s0")))
    y = make.add("neg", x)
    graph = make.build(
        [Ref(size), symbol("s0") * 2, None, Ref(y)], [None, None, None, tensor(symbol("s0"))]
    )
    results = run_program(program_of(graph), [3, np.ones(3, np.float32)])
    assert results[:3] == [3, 6, None]


def test_a_constant_has_a_buffer_of_its_own() -> None:
    make = Maker()
    x = make.add_input(tensor(2))
    data = np.array([3, 4], np.float32)
    held = make.add_input(Constant(tensor(2), b"\0" * 32, data.tobytes()))
    program = program_of(make.returning(make.add("add", x, held)))
    kinds = [buffer.kind for buffer in program.plan.buffers]
    assert BufferKind.CONSTANT in kinds
    result = run_program(program, [np.ones(2, np.float32)], constants=[data])[0]
    np.testing.assert_array_equal(result, [4, 5])


def test_an_index_outside_its_extent_is_reported() -> None:
    make = Maker()
    table, picks = make.add_input(tensor(5, 3)), make.add_input(tensor(2, dtype=DType.I64))
    program = program_of(make.returning(make.add("take", table, picks, dim=0)))
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(run_program(program, [rows, np.array([-1, 0])])[0], rows[[-1, 0]])
    with pytest.raises(IndexError):
        run_program(program, [rows, np.array([0, 5])])


def test_a_size_without_a_source_among_the_inputs_is_refused() -> None:
    kind = tensor(symbol("s0") * 2)
    graph = Graph("prims", (SizeSymbol("s0", 2, None),), (Input(0, kind),), (), (Ref(0),), (kind,))
    with pytest.raises(InvalidGraphError, match="s0"):
        program_of(graph)
