"""Loop kernels and programs in the interpreter."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr, symbol
from kernelfarm.ir.interpret import ExternSite, run_kernel, run_program
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    ExternCall,
    Launch,
    Plan,
    Program,
    SymbolSource,
    TensorView,
)
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel, verify_program
from tests.support.ir_strategies import GOLDEN


def golden(name: str) -> object:
    return parse_kernel((GOLDEN / f"{name}.kernel").read_text())


def test_softmax_of_bf16_rounds_once_at_the_end() -> None:
    x = np.random.default_rng(0).normal(size=(5, 128)).astype(ml_dtypes.bfloat16)
    out = np.zeros(5 * 128, ml_dtypes.bfloat16)
    run_kernel(golden("softmax"), {"in0": x.reshape(-1), "out0": out}, {"s0": 5})
    wide = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    expected = (wide / wide.sum(1, keepdims=True)).astype(ml_dtypes.bfloat16)
    got = out.reshape(5, 128).astype(np.float32)
    np.testing.assert_allclose(got, expected.astype(np.float32), rtol=2**-8)


def test_indirect_and_masked_loads_and_index_values() -> None:
    rng = np.random.default_rng(0)
    ids, table, bias = np.array([2, -1, 0]), rng.normal(size=(4, 64)), rng.normal(size=48)
    table, bias = table.astype(np.float32), bias.astype(np.float32)
    buffers = {
        "ids": ids,
        "table": table.reshape(-1),
        "bias": bias,
        "result": np.zeros(3 * 64, np.float32),
        "position": np.zeros(3 * 64, np.int64),
    }
    run_kernel(golden("embedding"), buffers, {"n": 3, "vocabulary": 4})
    expected = table[ids] + np.pad(bias, (0, 16))
    np.testing.assert_array_equal(buffers["result"].reshape(3, 64), expected)
    row, column = np.mgrid[:3, :64]
    position = 64 * row + column % 8 - 3 * ((row + column) // 4) + np.minimum(row, column)
    np.testing.assert_array_equal(buffers["position"].reshape(3, 64), position)


@pytest.mark.parametrize("bad", [4, -5])
def test_an_indirect_index_outside_its_extent_is_an_error(bad: int) -> None:
    buffers = {
        "ids": np.array([bad]),
        "table": np.zeros(256, np.float32),
        "bias": np.zeros(48, np.float32),
        "result": np.zeros(64, np.float32),
        "position": np.zeros(64, np.int64),
    }
    with pytest.raises(IndexError, match=f"statement 1: index {bad}"):
        run_kernel(golden("embedding"), buffers, {"n": 1, "vocabulary": 4})


def test_a_buffer_is_updated_in_place_after_it_was_read() -> None:
    x = np.array([[1, 5, 5, 2], [9, 0, 9, 0], [0, np.nan, 7, np.nan]], np.float32)
    buffers = {
        "inout0": x.reshape(-1).copy(),
        "out0": np.zeros(3, np.int64),
        "out1": np.zeros(3, np.bool_),
    }
    run_kernel(golden("argmax_inplace"), buffers, {})
    assert buffers["out0"].tolist() == [1, 0, 1]
    assert buffers["out1"].tolist() == [False, False, True]
    expected = x - x.max(1, keepdims=True)
    np.testing.assert_array_equal(buffers["inout0"].reshape(3, 4), expected)


SUM = """kernel total
size s0 from 0
size s1 from 0
param in in0: f32[s1]
param out out0: f32[s0]
for d0 in s0
reduce r0 in s1
reduce r1 in 3
  %0: f32 = load in0[r0]
  %1: f32 = sum %0
  store out0[d0] = %1
"""


def test_every_iteration_counts_even_if_the_operand_does_not_vary_with_it() -> None:
    out = np.zeros(2, np.float32)
    run_kernel(parse_kernel(SUM), {"in0": np.ones(4, np.float32), "out0": out}, {"s0": 2, "s1": 4})
    assert out.tolist() == [12.0, 12.0]


def test_a_reduction_of_no_iterations_stores_its_neutral_element() -> None:
    out = np.ones(2, np.float32)
    run_kernel(parse_kernel(SUM), {"in0": np.ones(0, np.float32), "out0": out}, {"s0": 2, "s1": 0})
    assert out.tolist() == [0.0, 0.0]


def test_no_outer_iteration_does_nothing() -> None:
    out = np.ones(0, np.float32)
    run_kernel(parse_kernel(SUM), {"in0": np.ones(4, np.float32), "out0": out}, {"s0": 0, "s1": 4})


def test_an_access_outside_its_buffer_is_an_error() -> None:
    buffers = {"in0": np.ones(3, np.float32), "out0": np.ones(1, np.float32)}
    with pytest.raises(VerificationError, match="accesses in0 from 0 to 3; expected 0 to 2"):
        run_kernel(parse_kernel(SUM), buffers, {"s0": 1, "s1": 4})


def test_a_buffer_of_another_type_is_an_error() -> None:
    buffers = {"in0": np.ones(3), "out0": np.ones(1, np.float32)}
    with pytest.raises(VerificationError, match="in0 is float64 of rank 1; expected float32"):
        run_kernel(parse_kernel(SUM), buffers, {"s0": 1, "s1": 3})


S0 = symbol("s0")
EXP = """kernel fused_exp
size s0 from 1
param in in0: f32[8*s0]
param out out0: f32[4*s0]
for d0 in s0
for d1 in 4
  %0: f32 = load in0[8*d0 + d1]
  %1: f32 = exp %0
  store out0[4*d0 + d1] = %1
"""


def exp_then_matmul() -> Program:
    row = TensorView("tmp0", DType.F32, (S0, as_expr(4)), (as_expr(4), ONE), ZERO)
    weight = TensorView("in1", DType.F32, (as_expr(4), as_expr(2)), (ONE, as_expr(4)), ZERO)
    product = TensorView("out0", DType.F32, (S0, as_expr(2)), (ONE, S0), ZERO)
    plan = Plan(
        target="cpu:x86-64-v4",
        symbols=(SymbolSource("s0", 0, 0),),
        buffers=(
            Buffer("in0", BufferKind.INPUT, DType.F32, 8 * S0 - 4, position=0),
            Buffer("in1", BufferKind.INPUT, DType.F32, as_expr(8), position=1),
            Buffer("tmp0", BufferKind.TEMPORARY, DType.F32, 4 * S0, offset_bytes=as_expr(64)),
            Buffer("out0", BufferKind.OUTPUT, DType.F32, 2 * S0),
        ),
        arena_bytes=64 + 16 * S0,
        kernel_names=("fused_exp",),
        steps=(
            Launch(0, ("in0", "tmp0"), (S0,)),
            ExternCall(7, "aten.mm.default", (row, weight), (product,), True),
        ),
        outputs=(product, S0 + 1, None),
    )
    return Program((parse_kernel(EXP),), plan)


def test_a_program_runs_on_strided_inputs_and_writes_strided_outputs() -> None:
    program = exp_then_matmul()
    verify_program(program)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 8)).astype(np.float32)[:, :4]
    w = rng.normal(size=(2, 4)).astype(np.float32).T

    def run_extern(site: ExternSite, arrays: list[np.ndarray]) -> list[np.ndarray]:
        assert site == ExternSite(7, "aten.mm.default")
        return [arrays[0] @ arrays[1]]

    result, size, none = run_program(program, [x, w], run_extern)
    np.testing.assert_allclose(result, np.exp(x) @ w, rtol=1e-6)
    assert result.strides == (4, 12)
    assert (size, none) == (4, None)


def test_a_view_that_leaves_its_buffer_is_an_error() -> None:
    program = exp_then_matmul()
    outside = TensorView("tmp0", DType.F32, (S0, as_expr(4)), (as_expr(5), ONE), ZERO)
    plan = replace(program.plan, outputs=(outside,), steps=program.plan.steps[:1])
    with pytest.raises(VerificationError, match="view of tmp0 reaches element 13"):
        run_program(
            replace(program, plan=plan),
            [np.zeros((3, 8), np.float32)[:, :4], np.zeros((4, 2), "f4")],
        )


def test_a_result_of_another_length_than_its_kernel_states_is_an_error() -> None:
    program = exp_then_matmul()
    buffers = [
        replace(buffer, size_elems=4 * S0 + 4) if buffer.name == "tmp0" else buffer
        for buffer in program.plan.buffers
    ]
    plan = replace(program.plan, buffers=tuple(buffers), arena_bytes=80 + 16 * S0)
    with pytest.raises(VerificationError, match="of 16 elements; expected 12"):
        run_program(
            replace(program, plan=plan),
            [np.zeros((3, 8), np.float32)[:, :4], np.zeros((4, 2), "f4")],
        )


def test_the_golden_kernels_verify() -> None:
    for path in GOLDEN.glob("*.kernel"):
        verify_kernel(parse_kernel(path.read_text()))
