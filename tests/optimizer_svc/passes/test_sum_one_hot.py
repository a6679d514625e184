"""A sum of a row with one element is this element, also for signs of zero and infinities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.graph_ir import Graph
from optimizer_svc.passes.sum_one_hot import sum_one_hot
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.optimizer_passes import before_and_after
from tests.support.traced_graphs import traced_one

CLASSES = 5
INDICES = torch.tensor([0, 4, 2, 5, -1, 2, 1])
"""Two of them are no class: their rows have no element."""
ELEMENTS = torch.tensor([1.5, -0.0, torch.inf, 3.0, torch.nan, torch.nan, -2.0])

ROWS = """\
graph prims 1
%0: i64[7]@[1] = input "index"
%1: f32[7]@[1] = input "x"
%2: i64[7, 1] = reshape(%0; shape=[{7}, {1}])
%3: i64[7, 5] = broadcast_in_dim(%2; dims=[0, 1], shape=[{7}, {5}])
%4: i64[5] = iota(; dtype=i64, length={5})
%5: i64[7, 5] = broadcast_in_dim(%4; dims=[1], shape=[{7}, {5}])
%6: bool[7, 5] = eq(%3, %5)
%7: f32[7, 5] = broadcast_in_dim(%1; dims=[0], shape=[{7}, {5}])
%8: f32[7, 5] = full(; dtype=f32, shape=[{7}, {5}], value=0.0)
%9: f32[7, 5] = where(%6, %7, %8)
%10: f32[7] = sum(%9; dims=[1])
return %10: f32[7]@[1]
"""


@pytest.mark.golden
def test_the_element_takes_the_place_of_the_sum() -> None:
    assert_golden(
        before_and_after("sum-one-hot", ROWS),
        """\
-- before sum-one-hot: graph
graph prims 1
%0: i64[7]@[1] = input "index"
%1: f32[7]@[1] = input "x"
%2: i64[7, 1] = reshape(%0; shape=[{7}, {1}])
%3: i64[7, 5] = broadcast_in_dim(%2; dims=[0, 1], shape=[{7}, {5}])
%4: i64[5] = iota(; dtype=i64, length={5})
%5: i64[7, 5] = broadcast_in_dim(%4; dims=[1], shape=[{7}, {5}])
%6: bool[7, 5] = eq(%3, %5)
%7: f32[7, 5] = broadcast_in_dim(%1; dims=[0], shape=[{7}, {5}])
%8: f32[7, 5] = full(; dtype=f32, shape=[{7}, {5}], value=0.0)
%9: f32[7, 5] = where(%6, %7, %8)
%10: f32[7] = sum(%9; dims=[1])
return %10: f32[7]@[1]
-- after: graph
graph prims 1
%0: i64[7]@[1] = input "index"
%1: f32[7]@[1] = input "x"
%2: i64[7, 1] = reshape(%0; shape=[{7}, {1}])
%3: i64[7, 5] = broadcast_in_dim(%2; dims=[0, 1], shape=[{7}, {5}])
%4: i64[5] = iota(; dtype=i64, length={5})
%5: i64[7, 5] = broadcast_in_dim(%4; dims=[1], shape=[{7}, {5}])
%6: bool[7, 5] = eq(%3, %5)
%7: f32[7, 5] = broadcast_in_dim(%1; dims=[0], shape=[{7}, {5}])
%8: f32[7, 5] = full(; dtype=f32, shape=[{7}, {5}], value=0.0)
%9: f32[7, 5] = where(%6, %7, %8)
%11: i64[7] = reshape(%2; shape=[{7}])
%12: i64[7] = broadcast_in_dim(%11; dims=[0], shape=[{7}])
%13: f32[7] = broadcast_in_dim(%1; dims=[0], shape=[{7}])
%14: i64[7] = full(; dtype=i64, shape=[{7}], value=0)
%15: i64[7] = full(; dtype=i64, shape=[{7}], value={5})
%16: bool[7] = ge(%12, %14)
%17: bool[7] = lt(%12, %15)
%18: bool[7] = logical_and(%16, %17)
%19: f32[7] = full(; dtype=f32, shape=[{7}], value=0.0)
%20: f32[7] = where(%18, %13, %19)
%10: f32[7] = add(%20, %19)
return %10: f32[7]@[1]
""",
    )


Rows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def in_rows(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hits = index[:, None] == torch.arange(CLASSES)
    return torch.where(hits, x[:, None], 0.0).sum(1)


def in_columns(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hits = torch.arange(CLASSES)[:, None] == index
    return torch.where(hits, x, -0.0).sum(0)


def between_axes(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hits = index[:, None, None].expand(7, 1, 3) == torch.arange(CLASSES)[:, None]
    return torch.where(hits, x.expand(3, 7).t()[:, None], 0.0).sum(1)


def of_a_constant(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(index[:, None] == torch.arange(CLASSES), 2.5, 0.0).sum(1) + x


def rounded(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hits = index[:, None] == torch.arange(CLASSES)
    return torch.where(hits, x[:, None] / 3, 0.0).bfloat16().float().sum(1)


@pytest.mark.parametrize("function", [in_rows, in_columns, between_axes, of_a_constant, rounded])
def test_sums_equal_eagers_and_have_no_loop(function: Rows) -> None:
    captured = traced_one(function, INDICES, ELEMENTS)
    assert "sum" not in ops(sum_one_hot(prims(captured.graph)))
    (result,) = compile_here(captured, Counts())([INDICES, ELEMENTS])
    expected = function(INDICES, ELEMENTS)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    numbers = ~expected.isnan()
    assert torch.equal(torch.signbit(result[numbers]), torch.signbit(expected[numbers]))


def of_several_elements(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(index[:, None] >= torch.arange(CLASSES), x[:, None], 0.0).sum(1)


def of_an_element_for_each_class(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hits = index[:, None] == torch.arange(CLASSES)
    return torch.where(hits, x[:CLASSES].expand(7, CLASSES), 0.0).sum(1)


def of_doubled_positions(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(index[:, None] == torch.arange(CLASSES) * 2, x[:, None], 0.0).sum(1)


def with_others_than_zero(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(index[:, None] == torch.arange(CLASSES), x[:, None], 1.0).sum(1)


def over_both_axes(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(index[:, None] == torch.arange(CLASSES), x[:, None], 0.0).sum()


@pytest.mark.parametrize(
    "function",
    [
        of_several_elements,
        of_an_element_for_each_class,
        of_doubled_positions,
        with_others_than_zero,
        over_both_axes,
    ],
)
def test_other_sums_stay(function: Rows) -> None:
    graph = prims(traced_one(function, INDICES, ELEMENTS).graph)
    assert sum_one_hot(graph) is graph
    assert "sum" in ops(graph)


def prims(graph: Graph) -> Graph:
    return decompose_to_prims(graph).graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]
