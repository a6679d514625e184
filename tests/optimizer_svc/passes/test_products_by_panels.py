"""Products by weights that a client ordered in panels: kernels in tiles that copy nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.freezing.order_weights import panels_of_matrix
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.targets import TargetFacts, target_facts
from optimizer_svc.passes.choose_products import choose_products
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import unless_it_runs
from tests.support.contraction_programs import run
from tests.support.in_process_compiler import Counts
from tests.support.traced_graphs import traced_one

PAIRS = target_facts("cpu:x86-64-v4-bf16-amd")
WIDE = target_facts("cpu:x86-64-v4-amd")
AVX2 = target_facts("cpu:x86-64-v3-amd")
runs_pairs, runs_wide = unless_it_runs(PAIRS.name), unless_it_runs(WIDE.name)
WIDTH = 64


def matrix(panels: Tensor, columns: int, terms: int) -> Tensor:
    """The view (columns, terms) of panels, as frozen graphs have it."""
    number, lanes, width, lane_terms = panels.shape
    whole = panels.permute(0, 2, 1, 3).reshape(number * width, lanes * lane_terms)
    return whole[:columns, :terms]


def layer(columns: int, terms: int) -> Callable[..., Tensor]:
    def function(x: Tensor, panels: Tensor, bias: Tensor) -> Tensor:
        return functional.gelu(functional.linear(x, matrix(panels, columns, terms), bias))

    return function


def operands(
    rows: int, columns: int, terms: int, dtype: torch.dtype, width: int = WIDTH
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, terms).to(dtype), torch.randn(columns).to(dtype)
    weight = (torch.randn(columns, terms) / terms**0.5).to(dtype)
    lane_terms = 4 // dtype.itemsize
    return x, panels_of_matrix(weight, width, lane_terms, is_turned=True), bias


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        (AVX2, torch.float32),
        pytest.param(WIDE, torch.float32, marks=runs_wide),
        pytest.param(PAIRS, torch.bfloat16, marks=runs_pairs),
    ],
    ids=["avx2", "wide", "pairs"],
)
@pytest.mark.parametrize(
    ("rows", "columns", "terms"), [(16, 128, 64), (17, 200, 255), (128, 1000, 33), (40, 66, 800)]
)
def test_a_layer_by_panels_is_one_kernel_as_exact_as_eager(
    rows: int, columns: int, terms: int, facts: TargetFacts, dtype: torch.dtype
) -> None:
    wide = 32 if columns in (200,) else 16 if columns == 66 else WIDTH
    width = 8 if facts is AVX2 and columns == 66 else 16 if facts is AVX2 else wide
    function, counts = layer(columns, terms), Counts()
    args = operands(rows, columns, terms, dtype, width)
    ours, graph = run(facts, counts, function, *args)
    assert (counts.launches, counts.externs) == (1, [])
    (kernel,) = optimize(graph, facts).program.kernels
    found = find_processor_product(kernel)
    assert found is not None
    assert found.right.order is not None
    assert found.right.order.width == width
    exact, eager = function(*(arg.double() for arg in args)), function(*args)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= 4 * errors[1]


@pytest.mark.parametrize("facts", [pytest.param(PAIRS, marks=runs_pairs)])
def test_a_turned_matrix_of_rows_is_stored_before_pairs_are_multiplied(
    facts: TargetFacts,
) -> None:
    x, panels, _ = operands(64, 128, 32, torch.bfloat16)

    def function(x: Tensor, panels: Tensor) -> Tensor:
        return x.t() @ matrix(panels, 128, 32).t()

    counts, turned = Counts(), x.t().contiguous()
    ours, _ = run(facts, counts, function, turned, panels)
    assert counts.externs == []
    torch.testing.assert_close(ours, function(turned, panels), atol=0.02, rtol=0.02)


def prims(dtype: torch.dtype, width: int = WIDTH, rows: int = 16) -> Graph:
    """The graph of a layer."""
    captured = traced_one(layer(128, 64), *operands(rows, 128, 64, dtype, width))
    return decompose_to_prims(captured.graph).graph


@pytest.mark.parametrize(
    ("dtype", "width", "rows", "facts", "reason"),
    [
        (torch.bfloat16, 64, 16, PAIRS, ""),
        (torch.bfloat16, 64, 15, PAIRS, "of fewer than 16 rows"),
        (torch.bfloat16, 64, 16, WIDE, "of bf16, which the library computes faster"),
        (torch.bfloat16, 32, 16, PAIRS, "by panels of another width than the target's"),
        (torch.float32, 64, 16, WIDE, ""),
        (torch.float32, 64, 16, AVX2, "by panels of another width than the target's"),
    ],
)
def test_other_panels_are_the_library_s(
    dtype: torch.dtype, width: int, rows: int, facts: TargetFacts, reason: str
) -> None:
    found = choose_products(prims(dtype, width, rows), facts)
    assert bool(found.by_result) is (not reason)
    assert reason in " ".join(found.notes)


def test_pairs_need_an_instruction() -> None:
    assert WIDE.tiles is not None
    assert PAIRS.tiles is not None
    facts = replace(WIDE, tiles=replace(WIDE.tiles, bf16=PAIRS.tiles.bf16))
    found = choose_products(prims(torch.bfloat16), facts)
    assert not found.by_result
    assert "by panels of pairs, which the target does not multiply" in " ".join(found.notes)


def test_the_report_says_that_the_framework_would_copy_panels() -> None:
    (note,) = choose_products(prims(torch.float32), WIDE).notes
    assert note.endswith("in tiles: its weight is in panels, which the framework would copy")
