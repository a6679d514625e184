"""Products of 8-bit integers: kernels where a processor multiplies bytes, else the framework's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from examples.integer_weights import dynamic_int8_linear
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import LlvmFacts, TargetFacts, target_facts
from optimizer_svc.ir.products import Products
from optimizer_svc.passes.choose_products import choose_products
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets, unless_it_runs
from tests.support.contraction_programs import run
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, tensor, tensor_with_strides
from tests.support.traced_graphs import traced_one

BYTES = target_facts("cpu:x86-64-v4-bf16-amd")
WIDE = target_facts("cpu:x86-64-v4-amd")
runs_bytes = unless_it_runs(BYTES.name)

PRODUCT = """\
graph prims 1
%0: i8[4, 128]@[128, 1] = input "x"
%1: i8[64, 128]@[128, 1] = input "w"
%2: i8[128, 64] = permute(%1; dims=[1, 0]) from [0]
%3: i32[4, 64]@[64, 1] = extern(%0, %2; is_contraction=true, node=1, op="aten._int_mm.default") from [1]
return %3: i32[4, 64]@[64, 1]
"""


@pytest.mark.golden
def test_a_product_becomes_a_sum_of_integers() -> None:
    assert_golden(
        before_and_after("compute-products", PRODUCT, BYTES.name),
        """\
-- before compute-products: graph
graph prims 1
%0: i8[4, 128]@[128, 1] = input "x"
%1: i8[64, 128]@[128, 1] = input "w"
%2: i8[128, 64] = permute(%1; dims=[1, 0]) from [0]
%3: i32[4, 64]@[64, 1] = extern(%0, %2; is_contraction=true, node=1, op="aten._int_mm.default") from [1]
return %3: i32[4, 64]@[64, 1]
-- after: graph
graph prims 1
%0: i8[4, 128]@[128, 1] = input "x"
%1: i8[64, 128]@[128, 1] = input "w"
%2: i8[128, 64] = permute(%1; dims=[1, 0]) from [0]
%4: i32[4, 128] = convert(%0; dtype=i32) from [1]
%5: i32[64, 128] = convert(%1; dtype=i32) from [1]
%6: i32[4, 64, 128] = broadcast_in_dim(%4; dims=[0, 2], shape=[{4}, {64}, {128}]) from [1]
%7: i32[4, 64, 128] = broadcast_in_dim(%5; dims=[1, 2], shape=[{4}, {64}, {128}]) from [1]
%8: i32[4, 64, 128] = mul(%6, %7) from [1]
%9: i32[4, 64] = sum(%8; dims=[2]) from [1]
%3: i32[4, 64] = convert(%9; dtype=i32) from [1]
return %3: i32[4, 64]@[64, 1]
""",
    )


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def layer_operands(rows: int, columns: int, terms: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, terms).to(dtype), torch.randn(columns)
    return [x, random_bytes(columns, terms), torch.rand(columns) / terms, bias]


@pytest.mark.sweep
@pytest.mark.parametrize("target", [pytest.param(BYTES.name, marks=runs_bytes), *run_targets()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_layer_has_the_results_of_eager(rows: int, dtype: torch.dtype, target: str) -> None:
    """Where kernels compute the product, what follows it is in the same kernel."""
    args, counts = layer_operands(rows, 70, 192, dtype), Counts()

    def layer(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return functional.gelu(dynamic_int8_linear(x, weight, scale, bias))

    ours, _ = run(target_facts(target), counts, layer, *args)
    torch.testing.assert_close(ours, layer(*args))
    externs = [] if target == BYTES.name else ["aten._int_mm.default"]
    assert (counts.launches, counts.externs) == (2, externs)


@pytest.mark.parametrize("facts", [pytest.param(BYTES, marks=runs_bytes)])
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_operands_of_any_strides_are_multiplied(rows: int, facts: TargetFacts) -> None:
    """Rows that are apart are read where they are; bytes of a row that are apart are copied."""
    wide, turned, weight = random_bytes(rows, 256), random_bytes(128, rows), random_bytes(64, 128)
    facts = own_bytes(facts)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch._int_mm(x[:, 64:192], weight.t()),
        lambda x: torch._int_mm(x[:, ::2], weight.t()),
    ]
    for function in functions:
        counts = Counts()
        ours, _ = run(facts, counts, function, wide)
        assert counts.externs == []
        assert torch.equal(ours, function(wide))
    ours, _ = run(facts, Counts(), lambda x: torch._int_mm(x.t(), weight.t()), turned)
    exact = turned.t().long() @ weight.t().long()
    assert torch.equal(ours.long(), exact)


def own_bytes(facts: TargetFacts) -> TargetFacts:
    """The facts of a target whose kernels are faster with all products of bytes."""
    assert facts.tiles is not None
    assert facts.tiles.i8 is not None
    table = (("1", 2.0),)
    times = replace(
        facts.tiles.i8, library=table, library_columns=table, row_terms=1, whole_columns=1
    )
    return replace(facts, tiles=replace(facts.tiles, i8=times))


@pytest.mark.parametrize("target", run_targets())
def test_the_framework_reads_a_transposed_weight_as_it_is(target: str) -> None:
    counts = Counts()
    x, weight = random_bytes(3, 32), random_bytes(40, 32)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch._int_mm(x, weight.t())

    ours, _ = run(target_facts(target), counts, product, x, weight)
    assert (counts.launches, counts.externs) == (0, ["aten._int_mm.default"])
    assert torch.equal(ours, product(x, weight))


def chosen(
    rows, target=BYTES, n=256, k=256, *, has_columns=False, choice=ProductChoice.AUTO
) -> Products:
    """Who computes the product of (rows, k) and a weight (n, k), or with columns (k, n)."""
    make = Maker([SizeSymbol("s0", 2, 8)])
    x = make.add_input(tensor(rows, k, dtype=DType.I8))
    shape = (k, n) if has_columns else (n, k)
    weight = make.add_input(tensor_with_strides(*shape, dtype=DType.I8))
    right = weight if has_columns else make.add("permute", weight, dims=(1, 0))
    result = tensor_with_strides(rows, n, dtype=DType.I32)
    op = "aten._int_mm.default"
    (y,) = make.add_extern(op, 0, [x, right], [result], is_contraction=True)
    return choose_products(make.returning(y), target, choice)


@pytest.mark.parametrize("rows", [1, 2, 16, 512, symbol("s0")])
def test_kernels_compute_products_by_weights_of_contiguous_rows(rows) -> None:
    assert chosen(rows).by_result
    assert chosen(rows, n=65).by_result


@pytest.mark.parametrize(
    ("rows", "sizes", "reason"),
    [
        (1, {"k": 250}, "of one row of no multiple of 64 terms"),
        (2, {"n": 60, "k": 1024}, "of fewer than 64 columns"),
        (2, {"n": 64, "k": 60}, "by weights of less than 4096 bytes"),
        (2, {"n": 250, "has_columns": True}, "of no multiple of 64 columns"),
        (512, {"has_columns": True}, "expected times are 1 for a kernel, 0.93 for the framework"),
        (symbol("s0"), {"has_columns": True}, "for the number of rows with the least"),
        (2, {"choice": ProductChoice.LIBRARY}, "because the request asks for the library"),
        (2, {"n": 0}, "without terms or results"),
        (2, {"n": symbol("s0")}, "by weights of varying sizes"),
    ],
)
def test_other_products_are_the_framework_s(rows, sizes, reason) -> None:
    found = chosen(rows, **sizes)
    assert not found.by_result
    assert reason in " ".join(found.notes)


@pytest.mark.parametrize("target", ["cpu:x86-64-v4-amd", "cpu:x86-64-v4", "cuda:sm_90a"])
@pytest.mark.parametrize("choice", [ProductChoice.AUTO, ProductChoice.OWN])
def test_other_targets_have_no_kernels_for_them(target: str, choice: ProductChoice) -> None:
    found = chosen(32, target_facts(target), choice=choice)
    assert not found.by_result
    assert "of 8-bit integers, for which the target has no kernels" in " ".join(found.notes)


def test_a_request_may_ask_for_kernels() -> None:
    found = chosen(512, has_columns=True, choice=ProductChoice.OWN)
    assert found.by_result
    assert "the request asks for kernels" in " ".join(found.notes)


def test_a_product_of_other_types_is_the_framework_s() -> None:
    make = Maker()
    x, w = (make.add_input(tensor_with_strides(64, 64, dtype=DType.U8)) for _ in range(2))
    result = tensor_with_strides(64, 64, dtype=DType.I32)
    (y,) = make.add_extern("aten._int_mm.default", 0, [x, w], [result], is_contraction=True)
    found = choose_products(make.returning(y), BYTES)
    assert not found.by_result
    assert "of other operands" in " ".join(found.notes)


def test_the_kernel_of_a_layer_is_a_product_of_bytes() -> None:
    args = layer_operands(16, 128, 192, torch.bfloat16)
    graph = decompose_to_prims(traced_one(dynamic_int8_linear, *args).graph).graph
    _, product = optimize(graph, BYTES).program.kernels
    found = find_processor_product(product)
    assert found is not None
    assert found.left.dtype is found.right.dtype is DType.I8


def test_the_target_has_the_instruction_and_asks_processors_for_it() -> None:
    assert BYTES.section(LlvmFacts).byte_dots == "vpdpbusd"
    assert WIDE.section(LlvmFacts).byte_dots is None
    assert BYTES.processor is not None
    assert "avx512_vnni" in BYTES.processor.flags
    assert "+avx512vnni" in BYTES.section(LlvmFacts).features


def test_arm_s_products_of_bytes_are_the_library_s_unless_a_request_asks_for_kernels() -> None:
    arm, graph = target_facts("cpu:aarch64-bf16"), parse_graph(PRODUCT)
    assert not choose_products(graph, arm).by_result
    (own,) = choose_products(graph, arm, ProductChoice.OWN).by_result.values()
    assert own.has_bytes
    assert not choose_products(graph, target_facts("cpu:aarch64"), ProductChoice.OWN).by_result
