"""Reductions in slices mean what whole ones mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import Graph, SizeSymbol
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.program_ir import Launch
from kernelfarm.ir.verify import verify_graph, verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.passes.choose_splits import choose_splits
from optimizer_svc.passes.split_reductions import split_reductions
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, sizes, tensor

H200 = target_facts("cuda:sm_90a")
EAGER_TO_SPLIT = replace(H200, memory=replace(H200.memory, launch_bytes=1))
"""A chip on which launches cost nothing: even small reductions are split."""

PROLOGUE_AND_EPILOGUE = """\
graph prims 1
%0: bf16[8190, 768]@[768, 1] = input "x"
%1: f32[8190, 768] = convert(%0; dtype=f32) from [0]
%2: f32[8190, 768] = exp(%1) from [1]
%3: f32[768] = sum(%2; dims=[0]) from [2]
%4: bf16[768] = convert(%3; dtype=bf16) from [3]
return %4: bf16[768]@[1]
"""


@pytest.mark.golden
def test_a_sum_becomes_a_sum_of_sums() -> None:
    assert_golden(
        before_and_after("split-reductions", PROLOGUE_AND_EPILOGUE, "cuda:sm_90a"),
        """\
-- before split-reductions: graph
graph prims 1
%0: bf16[8190, 768]@[768, 1] = input "x"
%1: f32[8190, 768] = convert(%0; dtype=f32) from [0]
%2: f32[8190, 768] = exp(%1) from [1]
%3: f32[768] = sum(%2; dims=[0]) from [2]
%4: bf16[768] = convert(%3; dtype=bf16) from [3]
return %4: bf16[768]@[1]
-- after: graph
graph prims 1
%0: bf16[8190, 768]@[768, 1] = input "x"
%1: f32[8190, 768] = convert(%0; dtype=f32) from [0]
%2: f32[8190, 768] = exp(%1) from [1]
%5: f32[65, 126, 768] = reshape(%2; shape=[{65}, {126}, {768}]) from [2]
%6: f32[65, 768] = sum(%5; dims=[1]) from [2]
%3: f32[768] = sum(%6; dims=[0]) from [2]
%4: bf16[768] = convert(%3; dtype=bf16) from [3]
return %4: bf16[768]@[1]
""",
    )


def test_the_prologue_is_in_the_first_kernel_and_the_epilogue_in_the_second() -> None:
    make = Maker()
    x = make.add_input(tensor(8192, 768))
    y = make.add("neg", make.add("sum", make.add("exp", x), dims=(0,)))
    result = optimize(make.returning(y), H200)
    launched = [step for step in result.program.plan.steps if isinstance(step, Launch)]
    ops = [[getattr(s, "op", "") for s in kernel.body] for kernel in result.program.kernels]
    assert len(launched) == 2
    assert ["exp" in found for found in ops] == [True, False]
    assert ["neg" in found for found in ops] == [False, True]
    assert "split: sum" in dict(result.stages)["report"]


FLOATS = ("sum", "prod", "amax", "amin", "argmax", "argmin")


@pytest.mark.parametrize("op", FLOATS)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((96, 5), (0,)), ((97, 5), (0,)), ((3, 131), (1,)), ((64, 2, 3), (0, 1)), ((4, 5, 67), (2,))],
)
def test_a_split_reduction_of_floats_means_the_same(op, shape, dims) -> None:
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check(reducing(op, numbers, dims), numbers)


@pytest.mark.parametrize("op", ["argmax", "argmin", "amax", "amin"])
def test_the_first_of_equal_extrema_and_the_first_nan_count(op) -> None:
    numbers = np.random.default_rng(1).integers(0, 3, (131, 9)).astype(np.float32)
    numbers[:, 0] = np.inf
    numbers[:, 1] = -np.inf
    numbers[[40, 41, 100], 2] = np.nan
    numbers[40, 3] = np.nan
    check(reducing(op, numbers, (0,)), numbers)


@pytest.mark.parametrize(("op", "dtype"), [("sum", np.int64), ("argmax", np.int32)])
def test_integers_are_exact(op, dtype) -> None:
    numbers = np.random.default_rng(2).integers(-9, 9, (131, 9)).astype(dtype)
    check(reducing(op, numbers, (0,)), numbers)


@pytest.mark.parametrize("op", ["any", "all"])
@pytest.mark.parametrize("probability", [0.0, 0.01, 0.99, 1.0])
def test_truth_values_are_exact(op, probability) -> None:
    values = np.random.default_rng(3).random((131, 9)) < probability
    check(reducing(op, values, (0,)), values)


@pytest.mark.parametrize("rows", [2, 17, 100, 1000])
def test_a_dynamic_extent_of_any_size_is_right(rows) -> None:
    make = Maker([SizeSymbol("s0", 2, None)])
    x = make.add_input(tensor(symbol("s0"), 5))
    y = make.add("sum", make.add("exp", x), dims=(0,))
    z = make.add("argmax", x, dims=(0,))
    graph = make.returning(y, z)
    assert len(choose_splits(graph, EAGER_TO_SPLIT).by_value) == 2
    check(graph, np.random.default_rng(4).standard_normal((rows, 5)).astype(np.float32))


def variance(rows: int, shift: float) -> tuple[Graph, np.ndarray]:
    make = Maker()
    x = make.add_input(tensor(rows, 3))
    total = make.add("reshape", make.add("sum", x, dims=(0,)), shape=sizes(1, 3))
    count = make.add("full", dtype=DType.F32, shape=sizes(1, 3), value=float(rows))
    mean = make.add("div", total, count)
    spread = make.add("broadcast_in_dim", mean, shape=sizes(rows, 3), dims=(0, 1))
    off = make.add("sub", x, spread)
    squares = make.add("sum", make.add("mul", off, off), dims=(0,))
    numbers = np.random.default_rng(5).standard_normal((rows, 3)) + shift
    return make.returning(squares, mean), numbers.astype(np.float32)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("rows", [4096, 4099])
def test_squared_deviations_far_from_zero_stay_exact(rows, shift) -> None:
    graph, numbers = variance(rows, shift)
    exact = numbers.astype(np.float64)
    exact = ((exact - exact.mean(0)) ** 2).sum(0)
    program = optimize(graph, EAGER_TO_SPLIT).program
    verify_program(program)
    whole = optimize(graph, target_facts("cpu:x86-64-v3")).program
    errors = [np.abs(run_program(p, [numbers])[0] - exact).max() for p in (program, whole)]
    # The means of the slices are rounded, and far from zero their differences are small.
    assert errors[0] <= max(errors[1], 1e-5 * exact.max())


def test_mean_and_squared_deviations_read_the_operand_once() -> None:
    graph, _ = variance(4096, 0.0)
    program = optimize(graph, EAGER_TO_SPLIT).program
    readers = [s for s in program.plan.steps if isinstance(s, Launch) and "in0" in s.buffers]
    assert len(readers) == 1


def reducing(op: str, numbers: np.ndarray, dims: tuple[int, ...]) -> Graph:
    make = Maker()
    kinds = {"float32": DType.F32, "int32": DType.I32, "int64": DType.I64, "bool": DType.BOOL}
    x = make.add_input(tensor(*numbers.shape, dtype=kinds[numbers.dtype.name]))
    return make.returning(make.add(op, x, dims=dims))


def check(graph: Graph, numbers: np.ndarray) -> None:
    expected = run_graph(graph, [numbers])
    splits = choose_splits(graph, EAGER_TO_SPLIT)
    changed = split_reductions(graph, splits)
    assert splits.by_value
    assert changed is not graph
    verify_graph(changed)
    program = optimize(graph, EAGER_TO_SPLIT).program
    verify_program(program)
    for found in (run_graph(changed, [numbers]), run_program(program, [numbers])):
        for ours, reference in zip(found, expected, strict=True):
            # A sum in slices has another order of its terms.
            np.testing.assert_allclose(ours, reference, rtol=2e-5, atol=1e-5)
            assert ours.dtype == reference.dtype
