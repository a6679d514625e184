"""Reductions over few elements across memory become operations on slices, which GPUs run faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.errors import WorkBudgetError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.interpret import numpy_dtype, run_graph, run_program
from kernelfarm.ir.program_ir import Launch
from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.verify import verify_graph
from kernelfarm.ir.work_budget import work_budget
from kernelfarm.targets import all_targets, target_facts
from optimizer_svc.analysis.graph_facts import graph_facts
from optimizer_svc.analysis.product_operands import Product
from optimizer_svc.analysis.short_reductions import COMBINED_BY, reduced_elems
from optimizer_svc.ir.products import NO_PRODUCTS, Products
from optimizer_svc.passes.unroll_reductions import unroll_reductions
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, tensor
from tests.support.traced_graphs import traced_one

GPU = "cuda:sm_90a"

GROUPED = """\
graph prims 1
%0: bf16[16, 4, 128]@[512, 128, 1] = input "gradient"
%1: f32[16, 4, 128] = convert(%0; dtype=f32)
%2: f32[16, 128] = sum(%1; dims=[1])
%3: bf16[16, 128] = convert(%2; dtype=bf16)
return %3: bf16[16, 128]@[128, 1]
"""
SYMBOLIC = """\
graph prims 1
size s0 from 2
%0: f16[2, s0, 3, 8]@[24*s0, 24, 8, 1] = input "x"
%1: f16[s0, 8] = amax(%0; dims=[0, 2])
return %1: f16[s0, 8]@[8, 1]
"""


@pytest.mark.golden
def test_a_sum_of_four_adds_slices() -> None:
    assert_golden(
        before_and_after("unroll-reductions", GROUPED, GPU),
        """\
-- before unroll-reductions: graph
graph prims 1
%0: bf16[16, 4, 128]@[512, 128, 1] = input "gradient"
%1: f32[16, 4, 128] = convert(%0; dtype=f32)
%2: f32[16, 128] = sum(%1; dims=[1])
%3: bf16[16, 128] = convert(%2; dtype=bf16)
return %3: bf16[16, 128]@[128, 1]
-- after: graph
graph prims 1
%0: bf16[16, 4, 128]@[512, 128, 1] = input "gradient"
%1: f32[16, 4, 128] = convert(%0; dtype=f32)
%4: f32[16, 1, 128] = slice(%1; limits=[{16}, {1}, {128}], starts=[{0}, {0}, {0}], steps=[{1}, {1}, {1}])
%5: f32[16, 128] = reshape(%4; shape=[{16}, {128}])
%6: f32[16, 1, 128] = slice(%1; limits=[{16}, {2}, {128}], starts=[{0}, {1}, {0}], steps=[{1}, {1}, {1}])
%7: f32[16, 128] = reshape(%6; shape=[{16}, {128}])
%8: f32[16, 1, 128] = slice(%1; limits=[{16}, {3}, {128}], starts=[{0}, {2}, {0}], steps=[{1}, {1}, {1}])
%9: f32[16, 128] = reshape(%8; shape=[{16}, {128}])
%10: f32[16, 1, 128] = slice(%1; limits=[{16}, {4}, {128}], starts=[{0}, {3}, {0}], steps=[{1}, {1}, {1}])
%11: f32[16, 128] = reshape(%10; shape=[{16}, {128}])
%12: f32[16, 128] = add(%5, %7)
%13: f32[16, 128] = add(%9, %11)
%14: f32[16, 128] = add(%12, %13)
%15: f32[16, 128] = full(; dtype=f32, shape=[{16}, {128}], value=0.0)
%2: f32[16, 128] = add(%14, %15)
%3: bf16[16, 128] = convert(%2; dtype=bf16)
return %3: bf16[16, 128]@[128, 1]
""",
    )


@pytest.mark.golden
def test_elements_of_two_axes_are_compared_in_f32() -> None:
    assert_golden(
        before_and_after("unroll-reductions", SYMBOLIC, GPU),
        """\
-- before unroll-reductions: graph
graph prims 1
size s0 from 2
%0: f16[2, s0, 3, 8]@[24*s0, 24, 8, 1] = input "x"
%1: f16[s0, 8] = amax(%0; dims=[0, 2])
return %1: f16[s0, 8]@[8, 1]
-- after: graph
graph prims 1
size s0 from 2
%0: f16[2, s0, 3, 8]@[24*s0, 24, 8, 1] = input "x"
%2: f16[1, s0, 1, 8] = slice(%0; limits=[{1}, {s0}, {1}, {8}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%3: f16[s0, 8] = reshape(%2; shape=[{s0}, {8}])
%4: f16[1, s0, 1, 8] = slice(%0; limits=[{1}, {s0}, {2}, {8}], starts=[{0}, {0}, {1}, {0}], steps=[{1}, {1}, {1}, {1}])
%5: f16[s0, 8] = reshape(%4; shape=[{s0}, {8}])
%6: f16[1, s0, 1, 8] = slice(%0; limits=[{1}, {s0}, {3}, {8}], starts=[{0}, {0}, {2}, {0}], steps=[{1}, {1}, {1}, {1}])
%7: f16[s0, 8] = reshape(%6; shape=[{s0}, {8}])
%8: f16[1, s0, 1, 8] = slice(%0; limits=[{2}, {s0}, {1}, {8}], starts=[{1}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%9: f16[s0, 8] = reshape(%8; shape=[{s0}, {8}])
%10: f16[1, s0, 1, 8] = slice(%0; limits=[{2}, {s0}, {2}, {8}], starts=[{1}, {0}, {1}, {0}], steps=[{1}, {1}, {1}, {1}])
%11: f16[s0, 8] = reshape(%10; shape=[{s0}, {8}])
%12: f16[1, s0, 1, 8] = slice(%0; limits=[{2}, {s0}, {3}, {8}], starts=[{1}, {0}, {2}, {0}], steps=[{1}, {1}, {1}, {1}])
%13: f16[s0, 8] = reshape(%12; shape=[{s0}, {8}])
%14: f32[s0, 8] = convert(%3; dtype=f32)
%15: f32[s0, 8] = convert(%5; dtype=f32)
%16: f32[s0, 8] = convert(%7; dtype=f32)
%17: f32[s0, 8] = convert(%9; dtype=f32)
%18: f32[s0, 8] = convert(%11; dtype=f32)
%19: f32[s0, 8] = convert(%13; dtype=f32)
%20: f32[s0, 8] = maximum(%14, %15)
%21: f32[s0, 8] = maximum(%16, %17)
%22: f32[s0, 8] = maximum(%18, %19)
%23: f32[s0, 8] = maximum(%20, %21)
%24: f32[s0, 8] = maximum(%23, %22)
%1: f16[s0, 8] = convert(%24; dtype=f16)
return %1: f16[s0, 8]@[8, 1]
""",
    )


@pytest.mark.parametrize("target", [t for t in all_targets() if target_facts(t).gpu is None])
def test_chips_that_are_no_gpu_keep_their_programs(target: str) -> None:
    facts = target_facts(target)
    assert facts.memory.most_unrolled_elems is None
    for text in (GROUPED, SYMBOLIC):
        graph = parse_graph(text)
        assert unroll_reductions(graph, facts, NO_PRODUCTS) is graph


@pytest.mark.parametrize("target", [GPU, "rocm:gfx942"])
def test_a_sum_over_the_queries_of_a_key_is_computed_in_flat_blocks(target: str) -> None:
    def grouped_sum(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view(1, 2048, 8, 4, 128).float().sum(3).to(torch.bfloat16)

    x = torch.zeros(1, 2048, 32, 128, dtype=torch.bfloat16)
    report = dict(optimize(traced(grouped_sum, x), target_facts(target)).stages)["report"]
    assert "flat blocks" in report
    assert "columns" not in report


SHAPES = [((5, 4, 6), (1,)), ((2, 3, 6), (0, 1)), ((2, 3, 4, 5), (0, 2)), ((7, 3), (0,))]
OPS = ["sum", "prod", "amax", "amin"]
TYPES = [DType.F64, DType.F32, DType.BF16, DType.F16, DType.I64, DType.I32, DType.U8]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("shape", "dims"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_slices_mean_what_the_reduction_means(
    op: str, shape: tuple[int, ...], dims: tuple[int, ...], dtype: DType
) -> None:
    graph = reduction(op, dtype, shape, dims)
    made = unrolled(graph)
    assert op not in ops(made)
    # Sums and products of these numbers are exact in f32, and wrap in integers of 8 bits.
    numbers = np.random.default_rng(0).integers(0, 9, shape)
    x = ((numbers - 4) / 4 if dtype.is_float else numbers).astype(numpy_dtype(dtype))
    assert_same(results(graph, x), results(made, x))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_nan_infinities_and_signs_of_zero_are_those_of_the_reduction(op: str, dtype: DType) -> None:
    graph = reduction(op, dtype, (4, 8, 8), (1,))
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5])
    x = np.random.default_rng(1).choice(special, (4, 8, 8)).astype(numpy_dtype(dtype))
    x[0], x[1] = -0.0, 2.0
    x[1, 3, 1], x[1, 0, 2], x[1, 7, 3] = np.nan, np.inf, -np.inf
    expected, found = results(graph, x), results(unrolled(graph), x)
    assert_same(expected, found)
    assert np.array_equal(np.signbit(expected[:2]), np.signbit(found[:2]))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_sum_of_eight_rounds_three_times_in_f32(dtype: DType) -> None:
    graph = reduction("sum", dtype, (64, 8, 32), (1,))
    (kernel,) = optimize(graph, target_facts(GPU)).program.kernels
    assert not kernel.reduction
    x = np.random.default_rng(2).standard_normal((64, 8, 32)).astype(numpy_dtype(dtype))
    wide = x.astype(np.float64)
    exact = wide.sum(1)
    error = np.abs(program_results(graph, x).astype(np.float64) - exact)
    rounding = 2.0**-24 if dtype is DType.F32 else 2.0**-8
    assert np.all(error <= 3 * 2.0**-24 * np.abs(wide).sum(1) + rounding * np.abs(exact))


def test_a_program_of_a_varying_size_means_what_the_graph_means() -> None:
    graph = parse_graph(SYMBOLIC)
    x = np.random.default_rng(3).standard_normal((2, 5, 3, 8)).astype(np.float16)
    assert_same(results(graph, x), program_results(graph, x))


def test_the_numbers_of_values_that_products_will_have_stay_free() -> None:
    graph = parse_graph(GROUPED)
    product = Product(x=0, weight=0, ordered_x=4)
    made = unroll_reductions(graph, target_facts(GPU), Products({3: product}))
    assert 4 not in made.types()


Function = Callable[..., Any]


def sum_before_a_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x.sum(1), (64,))


def weighted_sum(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (x * weights[:, :, None]).sum(1)


def extrema(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.amax(1), x.amin(1), x.float().sum(1)


def stored_and_summed_again(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x.sum(1)
    return total @ weight, total.sum(0)


def beside_a_long_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(1), x.sum((0, 2))


X = torch.zeros(32, 4, 64)
WEIGHT = torch.zeros(64, 16)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (sum_before_a_norm, (X,)),
        (weighted_sum, (X, torch.zeros(32, 4))),
        (extrema, (X,)),
        (stored_and_summed_again, (X, WEIGHT)),
        (beside_a_long_one, (X,)),
    ],
)
def test_short_reductions_are_in_no_loop(function: Function, arguments: tuple[Any, ...]) -> None:
    graph = traced(function, *arguments)
    made = unrolled(graph)
    assert short_ones(graph)
    assert not short_ones(made)
    assert launches(graph, GPU) <= launches(graph, GPU, most_unrolled=None)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(1)


def variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(1)


def maximum_and_its_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.max(1))


def of_a_stored_operand(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y.sum(1)


def beside_a_pointwise_reader(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, x.sum(1)


def of_a_function(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum(1)


def of_three_tensors(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x[:, 0], x[:, 1], x[:, 2])).sum(0)


def along_memory(x: torch.Tensor) -> torch.Tensor:
    return x.view(32, 64, 4).transpose(1, 2).sum(1)


def product_of_matrices(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x[:, 0, :4, None] * weight[:4, :]).sum(1)


def read_by_two_kernels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x.sum(1)
    return total + 1, (total * 2).sum(0)


def gathered_often(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)[torch.arange(64) // 2]


def of_nine(x: torch.Tensor) -> torch.Tensor:
    return x[:27].reshape(3, 9, 256).sum(1)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (softmax, (X,)),
        (variance, (X,)),
        (maximum_and_its_place, (X,)),
        (of_a_stored_operand, (X,)),
        (beside_a_pointwise_reader, (X,)),
        (of_a_function, (X,)),
        (of_three_tensors, (X,)),
        (along_memory, (X,)),
        (product_of_matrices, (X, WEIGHT)),
        (read_by_two_kernels, (X,)),
        (gathered_often, (X,)),
        (of_nine, (X,)),
    ],
)
def test_other_reductions_stay(function: Function, arguments: tuple[Any, ...]) -> None:
    graph = traced(function, *arguments)
    assert unrolled(graph) is graph


@pytest.mark.parametrize(("width", "is_held"), [(4096, True), (65536, False)])
def test_a_norm_whose_row_no_program_holds_reads_a_stored_sum(width: int, is_held: bool) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x.sum(1), (width,))

    graph = traced(norm, torch.zeros(2, 4, width))
    assert bool(short_ones(unrolled(graph))) is not is_held


def test_the_work_of_slices_is_counted() -> None:
    graph = reduction("sum", DType.F32, (4, 8, 8), (1,))
    with pytest.raises(WorkBudgetError), work_budget(64):
        unrolled(graph)


def traced(function: Function, *arguments: torch.Tensor) -> Graph:
    return decompose_to_prims(traced_one(function, *arguments).graph).graph


def reduction(op: str, dtype: DType, shape: tuple[int, ...], dims: tuple[int, ...]) -> Graph:
    make = Maker()
    x = make.add_input(tensor(*shape, dtype=dtype))
    return make.returning(make.add(op, x, dims=dims))


def unrolled(graph: Graph) -> Graph:
    made = unroll_reductions(graph, target_facts(GPU), NO_PRODUCTS)
    verify_graph(made)
    return made


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def short_ones(graph: Graph) -> list[int]:
    """The results of reductions of up to eight elements."""
    facts = graph_facts(graph)
    found = (n for n in graph.nodes if n.op in COMBINED_BY)
    return [n.results[0] for n in found if (reduced_elems(facts, n) or 9) <= 8]


def launches(graph: Graph, target: str, most_unrolled: int | None = 8) -> int:
    facts = target_facts(target)
    memory = replace(facts.memory, most_unrolled_elems=most_unrolled)
    plan = optimize(graph, replace(facts, memory=memory)).program.plan
    return sum(isinstance(step, Launch) for step in plan.steps)


def results(graph: Graph, x: NDArray[Any]) -> NDArray[Any]:
    (found,) = run_graph(graph, [x])
    return np.asarray(found)


def program_results(graph: Graph, x: NDArray[Any]) -> NDArray[Any]:
    (found,) = run_program(optimize(graph, target_facts(GPU)).program, [x])
    return np.asarray(found)


def assert_same(expected: NDArray[Any], found: NDArray[Any]) -> None:
    assert expected.dtype == found.dtype
    if expected.dtype.kind == "f":
        expected, found = expected.astype(np.float64), found.astype(np.float64)
    np.testing.assert_array_equal(found, expected, strict=True)
