"""Products by weights that models compute from integers of 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.loop_ir import Compute, Kernel, Load, Reduce
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import ExternCall, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import ProductTimes, TargetFacts, target_facts
from optimizer_svc.passes.choose_products import choose_products
from optimizer_svc.pipeline import optimize
from tests.support.integer_weights import FORMS, GROUP, operands
from tests.support.single_operator import to_numpy
from tests.support.traced_graphs import capturing, traced_one

FACTS = target_facts("cuda:sm_90a")
assert FACTS.few_rows is not None
GPU = replace(FACTS, few_rows=replace(FACTS.few_rows, grouped_nibbles=None))
"""A chip whose times of the template kernel for words of four bits are not known."""
N, K = 48, 4 * GROUP


def prims_of(layer: Callable[..., Tensor], args: Sequence[Tensor]) -> Graph:
    with torch.no_grad():
        return decompose_to_prims(traced_one(layer, *args).graph).graph


def notes_of(layer: Callable[..., Tensor], *args: Tensor) -> str:
    return "\n".join(choose_products(prims_of(layer, args), GPU).notes)


def interpreted(
    layer: Callable[..., Tensor], args: Sequence[Tensor], programs: list[Program]
) -> Tensor:
    """The layer's result in NumPy by the program for a GPU, which is appended to `programs`."""

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        graph = decompose_to_prims(captured.graph).graph
        programs.append(optimize(graph, GPU, ProductChoice.OWN).program)

        def run(*given: Tensor) -> list[Tensor]:
            inputs = [to_numpy(given[s]) for s in captured.sources if isinstance(s, int)]
            results = run_program(programs[-1], inputs)
            return [torch.from_numpy(r.astype(np.float32)).bfloat16() for r in results]

        return run

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(layer, backend=capturing(compiled), dynamic=False)(*args)


@pytest.mark.sweep
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", FORMS)
def test_kernels_compute_weights_as_exactly_as_eager(name: str, rows: int) -> None:
    torch.manual_seed(rows)
    layer, programs = FORMS[name].layer, []
    args = operands(FORMS[name], rows, N, K)
    ours = interpreted(layer, args, programs)
    (program,) = programs
    verify_program(program)
    assert not [step for step in program.plan.steps if isinstance(step, ExternCall)]
    exact = layer(*(a.double() if a.is_floating_point() else a for a in args))
    errors = [(found.double() - exact).abs().max().item() for found in (ours, layer(*args))]
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.sweep
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", FORMS)
def test_no_memory_holds_a_computed_weight(name: str, rows: int) -> None:
    args = operands(FORMS[name], rows, N, K)
    program = optimize(prims_of(FORMS[name].layer, args), GPU, ProductChoice.OWN).program
    made = [p for kernel in program.kernels for p in kernel.params if p.name.startswith("out")]
    assert max(param.size_elems.as_int() for param in made) <= rows * K


def kernel_of(name: str, rows: int) -> Kernel:
    args = operands(FORMS[name], rows, N, K)
    program = optimize(prims_of(FORMS[name].layer, args), GPU, ProductChoice.OWN).program
    return program.kernels[-1]


def loads_of(kernel: Kernel, param: str) -> list[Load]:
    return [s for s in kernel.body if isinstance(s, Load) and s.param == param]


def packed_param(kernel: Kernel) -> str:
    return max(
        kernel.params, key=lambda p: p.size_elems.as_int() * (p.dtype.itemsize_bytes < 2)
    ).name


@pytest.mark.parametrize("name", ["int4-neighbours", "int4-halves"])
def test_bytes_with_two_integers_are_read_in_words(name: str) -> None:
    """A step reads the four bytes of a word, each once, and multiplies eight integers."""
    kernel = kernel_of(name, 1)
    positions = [load.index for load in loads_of(kernel, packed_param(kernel))]
    assert [(p - positions[0]).constant for p in positions] == [0, 1, 2, 3]
    assert all((p - positions[0]).is_constant for p in positions)
    assert positions[0].coefficient_of("r0").as_int() == 4


def test_a_scale_of_groups_multiplies_the_sum_of_a_word() -> None:
    """Of one row: eight integers times x are added before the scale multiplies them."""
    kernel = kernel_of("int4-neighbours", 1)
    products = [s for s in kernel.body if isinstance(s, Compute) and s.op == "mul"]
    assert len(products) == 8 + 1
    (total,) = [s for s in kernel.body if isinstance(s, Reduce)]
    last = kernel.body[total.operand]
    assert isinstance(last, Compute)
    assert last.op == "mul"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_scale_of_rows_multiplies_the_sum(rows: int) -> None:
    kernel = kernel_of("int8-before", rows)
    (at,) = [n for n, s in enumerate(kernel.body) if isinstance(s, Reduce)]
    after = [s for s in kernel.body[at:] if isinstance(s, Compute) and s.op == "mul"]
    assert len(after) == 1
    if rows > 1:
        assert find_contraction(kernel) is not None


def test_the_report_states_times_that_include_storing_the_weight() -> None:
    layer = FORMS["int8-after"].layer
    notes = notes_of(layer, *operands(FORMS["int8-after"], 4, 2048, 2048))
    assert "by a kernel" in notes
    assert "0.72 for a kernel, 1.7 for the framework" in notes


@pytest.mark.parametrize("name", ["int8-after", "int8-before", "int4-neighbours", "int4-halves"])
def test_an_odd_number_of_results_is_computed_by_a_kernel_too(name: str) -> None:
    """For the library, zeros would follow each row of the weight, which would have to be stored."""
    notes = notes_of(FORMS[name].layer, *operands(FORMS[name], 1, 1001, 2048))
    assert "by a kernel" in notes
    assert "framework:" not in notes


def test_weights_that_are_packed_along_their_results_stay_with_the_library() -> None:
    """Two columns share a byte, which a sum of one column would read for half of it."""

    def layer(x: Tensor, packed: Tensor) -> Tensor:
        pairs = torch.stack((packed & 15, packed >> 4), -1)
        return x @ pairs.reshape(2048, 2048).to(x.dtype)

    packed = torch.randint(0, 256, (2048, 1024), dtype=torch.uint8)
    notes = notes_of(layer, torch.randn(2, 2048).bfloat16(), packed)
    assert "whose elements are stored in another order" in notes


def test_a_weight_that_is_also_returned_is_stored() -> None:
    def layer(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
        wide = weight.to(x.dtype) * 2
        return functional.linear(x, wide), wide

    weight = torch.randint(-128, 128, (2048, 2048), dtype=torch.int8)
    notes = notes_of(layer, torch.randn(2, 2048).bfloat16(), weight)
    assert "by a computed weight that others read" in notes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_were_no_smaller_before_stay_with_the_library(dtype: torch.dtype) -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, (weight * 2).bfloat16())

    weight = torch.randn(2048, 2048).to(dtype)
    notes = notes_of(layer, torch.randn(2, 2048).bfloat16(), weight)
    assert "takes no fewer bytes before" in notes


def test_weights_of_many_operations_stay_with_the_library() -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        wide = weight.to(x.dtype)
        for number in range(40):
            wide = (wide + number).sin()
        return functional.linear(x, wide)

    weight = torch.randint(-128, 128, (2048, 2048), dtype=torch.int8)
    notes = notes_of(layer, torch.randn(2, 2048).bfloat16(), weight)
    assert "that many operations compute" in notes


@pytest.mark.parametrize("name", ["int8-after", "int8-transposed"])
def test_a_row_of_bytes_is_summed_however_its_view_is_written(name: str) -> None:
    """Not in tiles: one row of x by rows of bytes is a reduction."""
    kernel = kernel_of(name, 1)
    assert find_contraction(kernel) is None
    (rows,) = loads_of(kernel, packed_param(kernel))
    assert rows.index.coefficient_of("r0").as_int() == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_integers_may_be_beyond_the_range_of_f16_before_they_are_scaled(rows: int) -> None:
    def layer(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return functional.linear(x, ((weight.float() * 1000) * scale[:, None]).half())

    args = (
        torch.randn(rows, K).half(),
        torch.randint(-128, 128, (N, K)).to(torch.int8),
        torch.rand(N) * 1e-6,
    )
    programs: list[Program] = []
    ours = interpreted(layer, args, programs)
    assert not [step for step in programs[0].plan.steps if isinstance(step, ExternCall)]
    torch.testing.assert_close(ours.float(), layer(*args).float(), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("n", "k"), [(0, 256), (256, 0)])
def test_empty_weights_stay_with_the_library(n: int, k: int) -> None:
    layer = FORMS["int8-after"].layer
    args = torch.randn(2, k).bfloat16(), torch.zeros(n, k, dtype=torch.int8), torch.ones(n)
    assert "without terms or results" in notes_of(layer, *args)


def test_a_weight_of_constants_and_an_empty_tensor_stays_with_the_library() -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        wide = torch.cat([weight, torch.ones(256, 256, dtype=torch.int8)])
        return functional.linear(x, wide.to(x.dtype))

    notes = notes_of(layer, torch.randn(2, 256).bfloat16(), torch.zeros(0, 256, dtype=torch.int8))
    assert "by a kernel" not in notes


@pytest.mark.parametrize("dim", [0, 1])
def test_a_weight_of_two_tensors_stays_with_the_library(dim: int) -> None:
    def layer(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return functional.linear(x, torch.cat([first, second], dim).to(x.dtype))

    halves = [torch.zeros(1024, 1024, dtype=torch.int8) for _ in range(2)]
    notes = notes_of(layer, torch.randn(2, 1024 * (1 + dim)).bfloat16(), *halves)
    assert "whose elements are stored in another order" in notes


def test_a_bias_of_many_operations_is_stored() -> None:
    """Only the weight is computed again where it is used."""

    def layer(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        for number in range(100):
            bias = (bias + number).relu()
        return torch.addmm(bias, x, (weight.to(x.dtype) * scale[:, None]).t())

    args = [*operands(FORMS["int8-before"], 3, N, K), torch.randn(N).bfloat16()]
    program = optimize(prims_of(layer, args), GPU, ProductChoice.OWN).program
    assert not [step for step in program.plan.steps if isinstance(step, ExternCall)]
    assert len(program.kernels) > 1
    assert len(program.kernels[-1].body) < 100


def test_many_rows_stay_with_the_library() -> None:
    layer = FORMS["int8-after"].layer
    notes = notes_of(layer, *operands(FORMS["int8-after"], 65, 2048, 2048))
    assert "of more than 64 rows" in notes


def test_products_that_share_rows_share_their_order() -> None:
    """Queries, keys and values read x in the order of a word's integers: one kernel orders it."""

    def layer(x: Tensor, *stored: Tensor) -> Tensor:
        form = FORMS["int4-neighbours"].layer
        return torch.cat([form(x, *stored[at : at + 3]) for at in (0, 3, 6)], -1)

    form = FORMS["int4-neighbours"]
    args = [torch.randn(2, K).bfloat16()]
    args += [tensor for _ in range(3) for tensor in form.store(N, K, "cpu")]
    program = optimize(prims_of(layer, args), GPU, ProductChoice.OWN).program
    copies = [k for k in program.kernels if not k.reduction and len(k.params) == 2]
    assert len(copies) == 1


@pytest.mark.parametrize("name", ["float8-after", "float8-before", "float8-e5m2"])
def test_8_bit_floats_are_multiplied_in_f32_without_a_rounding(name: str) -> None:
    """Both types of 16 bits have all their values."""
    kernel = kernel_of(name, 1)
    (weight,) = loads_of(kernel, packed_param(kernel))
    at = kernel.body.index(weight)
    (wide,) = [s for s in kernel.body if isinstance(s, Compute) and at in s.operands]
    assert (wide.op, wide.dtype) == ("convert", DType.F32)


FLOAT8 = "float8-before"


def float8_notes(rows: int, facts: TargetFacts) -> str:
    layer, args = FORMS[FLOAT8].layer, operands(FORMS[FLOAT8], rows, 2048, 2048)
    return "\n".join(choose_products(prims_of(layer, args), facts).notes)


def test_the_report_says_from_what_a_kernel_computes_a_weight() -> None:
    assert "by a kernel that computes its weight from f8e4m3fn: expected times" in float8_notes(
        4, FACTS
    )
    layer, args = FORMS["int8-before"].layer, operands(FORMS["int8-before"], 1, 2048, 2048)
    assert "that computes its weight from i8" in notes_of(layer, *args)


@pytest.mark.parametrize(
    ("rows", "target", "reason"),
    [
        (65, "cuda:sm_90a", "of more than 64 rows by a weight of f8e4m3fn, for which kernels were"),
        (2, "cpu:x86-64-v4-amd", "of more than 1 rows by a weight of f8e4m3fn"),
        (
            1,
            "cpu:x86-64-v4",
            "of bf16 by a weight of f8e4m3fn, for which the target has no kernels",
        ),
    ],
)
def test_the_report_says_why_a_weight_of_8_bit_floats_is_stored(
    rows: int, target: str, reason: str
) -> None:
    assert reason in float8_notes(rows, target_facts(target))


def test_kernels_multiply_by_8_bit_floats_where_that_was_measured() -> None:
    assert FACTS.few_rows is not None
    known = replace(FACTS.few_rows, float8=None)
    notes = float8_notes(4, replace(FACTS, few_rows=known))
    assert "by a weight of f8e4m3fn that was not measured" in notes
    slow = ProductTimes(1 << 20, library=(("1", 0.5),), kernel=(("64", 2.0),))
    notes = float8_notes(4, replace(FACTS, few_rows=replace(known, float8=slow)))
    assert "by the framework, by a weight that a kernel stores: expected times are 2" in notes
