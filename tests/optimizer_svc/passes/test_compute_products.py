"""Chosen products become sums that one kernel computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.loop_ir import Access, Compute, Reduce
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import ExternCall, Launch
from kernelfarm.ir.text import parse_graph, print_graph
from kernelfarm.ir.verify import verify_graph, verify_program
from kernelfarm.targets import (
    FewRowFacts,
    ProductTimes,
    TargetFacts,
    TileFacts,
    TileTimes,
    target_facts,
)
from optimizer_svc.passes.choose_products import choose_products
from optimizer_svc.passes.compute_products import compute_products
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets
from tests.support.contraction_programs import run as run_program_of
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compile_here, compiled_for
from tests.support.optimizer_passes import before_and_after
from tests.support.single_operator import to_numpy
from tests.support.traced_graphs import capturing, traced_one

ROWS_OF_BF16 = """\
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%3: bf16[2, 1024]@[1024, 1] = extern(%0, %2; is_contraction=true, node=1, op="aten.mm.default") from [1]
return %3: bf16[2, 1024]@[1024, 1]
"""


@pytest.mark.golden
def test_each_row_becomes_a_sum_in_f32_that_is_rounded_once() -> None:
    assert_golden(
        before_and_after("compute-products", ROWS_OF_BF16, "cpu:x86-64-v4"),
        """\
-- before compute-products: graph
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%3: bf16[2, 1024]@[1024, 1] = extern(%0, %2; is_contraction=true, node=1, op="aten.mm.default") from [1]
return %3: bf16[2, 1024]@[1024, 1]
-- after: graph
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%4: f32[2, 1024] = convert(%0; dtype=f32) from [1]
%5: f32[1024, 1024] = convert(%1; dtype=f32) from [1]
%6: f32[1, 1024] = slice(%4; limits=[{1}, {1024}], starts=[{0}, {0}], steps=[{1}, {1}]) from [1]
%7: f32[1024, 1024] = broadcast_in_dim(%6; dims=[0, 1], shape=[{1024}, {1024}]) from [1]
%8: f32[1024, 1024] = mul(%7, %5) from [1]
%9: f32[1024] = sum(%8; dims=[1]) from [1]
%10: f32[1, 1024] = slice(%4; limits=[{2}, {1024}], starts=[{1}, {0}], steps=[{1}, {1}]) from [1]
%11: f32[1024, 1024] = broadcast_in_dim(%10; dims=[0, 1], shape=[{1024}, {1024}]) from [1]
%12: f32[1024, 1024] = mul(%11, %5) from [1]
%13: f32[1024] = sum(%12; dims=[1]) from [1]
%14: bf16[1024] = convert(%9; dtype=bf16) from [1]
%15: bf16[1024] = convert(%13; dtype=bf16) from [1]
%16: bf16[1, 1024] = reshape(%14; shape=[{1}, {1024}]) from [1]
%17: bf16[1, 1024] = reshape(%15; shape=[{1}, {1024}]) from [1]
%3: bf16[2, 1024] = cat(%16, %17; dim=0) from [1]
return %3: bf16[2, 1024]@[1024, 1]
""",
    )


def by_kernels(target: str, rows: int) -> TargetFacts:
    """A target whose kernels compute all products of up to so many rows."""
    times = ProductTimes(1, library=(("1", 2.0),), kernel=((str(rows), 1.0),))
    return replace(target_facts(target), few_rows=FewRowFacts(wide=times, narrow=times))


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 4, 9])
def test_products_by_kernels_are_as_exact_as_the_library_s(
    rows: int, dtype: torch.dtype, target: str
) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 1027).to(dtype), torch.randn(131, 1027).to(dtype)
    counts = Counts()
    run = compile_here(traced_one(functional.linear, x, weight), counts, by_kernels(target, rows))
    assert not counts.externs
    exact = functional.linear(x.double(), weight.double())
    (ours,), eager = run([x, weight]), functional.linear(x, weight)
    assert ours.dtype is dtype
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= 4 * errors[1]


@pytest.mark.parametrize("rows", [2, 8, 12])
def test_each_row_is_stored_where_its_readers_find_it(rows: int) -> None:
    """No kernel selects a row for each element: activations read one matrix."""

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.linear(x, weight, bias))

    args = torch.randn(rows, 512), torch.randn(768, 512), torch.randn(768)
    graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    program = optimize(graph, by_kernels("cpu:x86-64-v4-amd", rows)).program
    product, activation = program.kernels
    assert sum(isinstance(s, Reduce) for s in product.body) == rows
    assert len([p for p in product.params if p.access is not Access.READ]) == 1
    assert not any(isinstance(s, Compute) and s.op == "where" for s in activation.body)
    assert len([p for p in activation.params if p.access is not Access.WRITE]) == 1


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("rows", [4, 12])
def test_a_product_may_replace_its_own_rows(rows: int, target: str) -> None:
    """No row is stored before all sums have read it."""

    def step(state: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        before = state.amax(1)
        state.copy_(functional.linear(state, weight))
        return before + state.amin(1)

    state, weight = torch.randn(rows, 512), torch.randn(512, 512)
    expected, counts = state.clone(), Counts()
    exact = step(expected, weight)
    found, _ = run_program_of(by_kernels(target, rows), counts, step, state, weight)
    assert not counts.externs
    torch.testing.assert_close(found, exact, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(state, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("rows", "launches"), [(1, 1), (4, 1), (6, 1), (8, 2)])
def test_products_of_many_rows_are_kernels_of_their_own(rows: int, launches: int) -> None:
    """The registers of a processor hold the sums of twelve rows."""

    def layer(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Sequence[torch.Tensor]:
        return functional.linear(x, a), functional.linear(x, b)

    args = torch.randn(rows, 512), torch.randn(768, 512), torch.randn(768, 512)
    graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    program = optimize(graph, by_kernels("cpu:x86-64-v4-amd", rows)).program
    assert len([step for step in program.plan.steps if isinstance(step, Launch)]) == launches


def in_tiles(rows: int) -> TargetFacts:
    """A GPU whose kernels compute all products of 16 bits with up to so many rows."""
    times = ProductTimes(1, library=(("1", 2.0),), kernel=((str(rows), 1.0),))
    facts = FewRowFacts(narrow=times, narrow_columns=times)
    return replace(target_facts("cuda:sm_90a"), few_rows=facts)


@pytest.mark.golden
def test_several_rows_become_one_sum_if_the_target_has_tiles() -> None:
    given = parse_graph(ROWS_OF_BF16)
    graph = compute_products(given, choose_products(given, in_tiles(2)))
    verify_graph(graph)
    assert_golden(
        print_graph(graph),
        """\
graph prims 1
%0: bf16[2, 1024]@[1024, 1] = input "x"
%1: bf16[1024, 1024]@[1024, 1] = input "w"
%2: bf16[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%4: f32[2, 1024] = convert(%0; dtype=f32) from [1]
%5: f32[1024, 1024] = convert(%1; dtype=f32) from [1]
%6: f32[2, 1024, 1024] = broadcast_in_dim(%4; dims=[0, 2], shape=[{2}, {1024}, {1024}]) from [1]
%7: f32[2, 1024, 1024] = broadcast_in_dim(%5; dims=[1, 2], shape=[{2}, {1024}, {1024}]) from [1]
%8: f32[2, 1024, 1024] = mul(%6, %7) from [1]
%9: f32[2, 1024] = sum(%8; dims=[2]) from [1]
%3: bf16[2, 1024] = convert(%9; dtype=bf16) from [1]
return %3: bf16[2, 1024]@[1024, 1]
""",
    )


class GatedLayer(nn.Module):
    """Llama's normalization and feed-forward layer, with the addition to the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.gate, self.up = (nn.Linear(64, 96, bias=False) for _ in range(2))
        self.down = nn.Linear(96, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = functional.rms_norm(x, (64,), self.scale)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))


def test_what_follows_products_in_tiles_is_fused_with_them() -> None:
    """Both products that share rows, SiLU and multiplication are one kernel, the sum another."""
    args = torch.randn(1, 16, 64).bfloat16()
    with torch.no_grad():
        captured = traced_one(GatedLayer().bfloat16(), args)
    graph = decompose_to_prims(captured.graph).graph
    program = optimize(graph, in_tiles(16)).program
    verify_program(program)
    products = [find_contraction(kernel) for kernel in program.kernels]
    assert [len(found.sums) if found else 0 for found in products] == [0, 2, 1]
    assert not [step for step in program.plan.steps if isinstance(step, ExternCall)]


def test_a_sum_of_another_kind_does_not_enter_the_tiles_of_a_product() -> None:
    """Both are small, independent, and sum 64 elements for each of 16 x 96 results."""

    def layer(x: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> Sequence[torch.Tensor]:
        return functional.linear(x, weight), other.exp().sum(-1)

    args = [torch.randn(shape).bfloat16() for shape in ((16, 64), (96, 64), (16, 96, 64))]
    graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    result = optimize(graph, in_tiles(16))
    products = [find_contraction(kernel) is not None for kernel in result.program.kernels]
    assert sorted(products) == [False, True]
    assert (
        "one is a product in tiles, and the other would not fit its tiles"
        in dict(result.stages)["report"]
    )


@pytest.mark.parametrize("rows", [2, 16])
def test_products_in_tiles_round_once(rows: int) -> None:
    """In NumPy, against float64: as exact as the library."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 304).bfloat16(), torch.randn(40, 304).bfloat16()
    captured = traced_one(functional.linear, x, weight)
    lowered = decompose_to_prims(captured.graph)
    program = optimize(lowered.graph, in_tiles(rows)).program
    given = [tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for tensor in (x, weight)]
    (ours,) = run_program(program, given)
    exact = functional.linear(x.double(), weight.double()).numpy()
    eager = functional.linear(x, weight).double().numpy()
    errors = [np.abs(found.astype(np.float64) - exact).max() for found in (ours, eager)]
    assert errors[0] <= errors[1] * 1.01


@pytest.mark.parametrize("rows", [1, 3, 17, 40])
@pytest.mark.parametrize("has_columns", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_with_a_bias_round_once(rows: int, has_columns: bool, dtype: torch.dtype) -> None:
    """In NumPy, against float64; with many rows the sums are in slices."""
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, 2048).to(dtype), torch.randn(48).to(dtype)
    weight = torch.randn((2048, 48) if has_columns else (48, 2048)).to(dtype)

    def layer(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight if has_columns else weight.t())

    args = (bias, x, weight)
    captured = traced_one(layer, *args)
    graph = decompose_to_prims(captured.graph).graph
    program = optimize(graph, target_facts("cuda:sm_90a"), ProductChoice.OWN).program
    verify_program(program)
    assert all(isinstance(step, Launch) for step in program.plan.steps)
    assert len(program.plan.steps) == (2 if rows > 16 else 1)
    by_shape = {tuple(tensor.shape): tensor for tensor in args}
    shapes = [tuple(e.as_int() for e in i.kind.shape) for i in captured.graph.inputs]
    (ours,) = run_program(program, [to_numpy(by_shape[shape]) for shape in shapes])
    exact = layer(*(tensor.double() for tensor in args)).numpy()
    eager = layer(*args).double().numpy()
    errors = [np.abs(found.astype(np.float64) - exact).max() for found in (ours, eager)]
    assert errors[0] <= errors[1] * 1.01


def test_slices_are_added_with_what_follows_in_another_kernel() -> None:
    """The slices of both products are one kernel, their sums, SiLU and multiplication the next."""

    def layer(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)

    args = [torch.randn(shape).bfloat16() for shape in ((40, 2048), (64, 2048), (64, 2048))]
    graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    result = optimize(graph, target_facts("cuda:sm_90a"), ProductChoice.OWN)
    verify_program(result.program)
    slices, total = result.program.kernels
    found = find_contraction(slices)
    assert found is not None
    assert len(found.sums) == 2
    assert [axis.extent.as_int() for axis in found.batches] == [2]
    assert find_contraction(total) is None
    assert "by kernels, in 2 slices: the request asks for kernels" in dict(result.stages)["report"]


def test_what_follows_a_product_of_one_row_is_fused_with_it() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.linear(x, weight)) + residual

    torch.manual_seed(0)
    args = [torch.randn(1, 64), torch.randn(48, 64), torch.randn(1, 48)]
    counts = Counts()
    run = compile_here(traced_one(layer, *args), counts, by_kernels("cpu:x86-64-v3", 1))
    assert (counts.launches, counts.externs) == (1, [])
    torch.testing.assert_close(run(args)[0], layer(*args))


@pytest.mark.parametrize("rows", [1, 4])
def test_what_precedes_a_product_is_computed_once(rows: int) -> None:
    """Inside the product's loop it would be computed again for each row of the weight."""

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.relu() + 1, weight)

    args = [torch.randn(rows, 64), torch.randn(80, 64)]
    graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    kernels = optimize(graph, by_kernels("cpu:x86-64-v3", rows)).program.kernels
    operations = [{getattr(statement, "op", "") for statement in k.body} for k in kernels]
    assert any("maximum" in found for found in operations)
    assert not any({"maximum", "sum"} <= found for found in operations)


class Block(nn.Module):
    """An encoder layer of BERT with a feed-forward layer of GPT-2, whose weights are (k, n)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))
        self.up, self.down = nn.Parameter(torch.randn(64, 96)), nn.Parameter(torch.randn(96, 64))
        self.bias = nn.Parameter(torch.randn(96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        heads = [
            layer(x).view(batch, tokens, 2, 32).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        ]
        mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2)
        x = x + self.o(mixed.reshape(batch, tokens, width))
        up = torch.addmm(self.bias, x.view(-1, width), self.up)
        inner = functional.gelu(up, approximate="tanh")
        return x + torch.mm(inner, self.down).view(batch, tokens, width)


def test_what_follows_products_in_tiles_of_processors_is_fused_with_them() -> None:
    """Six products with biases, GELU and residuals are six kernels, beside attention."""
    torch.manual_seed(0)
    times = (("2", 2.0),)
    tiles = TileFacts(TileTimes(1, library=times, library_columns=times))
    facts = replace(target_facts(host_cpu_target()), tiles=tiles, attention=None)
    block, x, counts, found = Block(), torch.randn(2, 17, 64), Counts(), []

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        found.append(captured)
        run = compile_here(captured, counts, facts)
        return lambda *args: run(list(args))

    with torch.no_grad():
        torch._dynamo.reset()
        ours = torch.compile(block, backend=capturing(compiled))(x)
        eager, exact = block(x), block.double()(x.double())
    assert counts.launches == 6
    assert counts.externs == ["aten.scaled_dot_product_attention.default"]
    (captured,) = found
    kernels = optimize(decompose_to_prims(captured.graph).graph, facts).program.kernels
    assert all(find_processor_product(kernel) for kernel in kernels)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= 4 * errors[1]


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_program_computes_products_of_all_numbers_of_rows(
    target: str, dtype: torch.dtype
) -> None:
    """Batches and tokens vary; what follows products is fused with them as if they did not."""
    torch.manual_seed(0)
    times = TileTimes(1, library=(("2", 2.0),), library_columns=(("2", 2.0),))
    tiles = TileFacts(times, times, times)
    facts = replace(target_facts(target), tiles=tiles, attention=None)
    block, counts = Block().to(dtype), Counts()
    exact, fast = copy.deepcopy(block).double(), compiled_for(block, facts, counts)
    with torch.no_grad():
        for batch, tokens in ((3, 17), (2, 2), (2, 3), (7, 90), (5, 8)):
            x = torch.randn(batch, tokens, 64).to(dtype)
            torch._dynamo.mark_dynamic(x, [0, 1])
            expected = exact(x.double())
            errors = [(y(x).double() - expected).abs().max().item() for y in (fast, block)]
            assert errors[0] <= 4 * errors[1]
    assert (counts.graphs, counts.launches) == (1, 6)
    assert counts.externs == ["aten.scaled_dot_product_attention.default"]
