"""Which products kernels compute on GPUs and on cube cores, and what follows them."""

from __future__ import annotations

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import TargetFacts, target_facts
from optimizer_svc.analysis.product_operands import Product
from optimizer_svc.passes.choose_products import choose_products

V4 = target_facts("cpu:x86-64-v4")

BIASED = """\
graph prims 1
%0: bf16[1024]@[1] = input "bias"
%1: bf16[4, 2048]@[2048, 1] = input "x"
%2: bf16[1024, 2048]@[2048, 1] = input "w"
%3: bf16[2048, 1024] = permute(%2; dims=[1, 0]) from [0]
%4: bf16[4, 1024]@[1024, 1] = extern(%0, %1, %3; is_contraction=true, is_unscaled=true, node=1, op="aten.addmm.default") from [1]
return %4: bf16[4, 1024]@[1024, 1]
"""
HOPPER = target_facts("cuda:sm_90a")


def by_kernels(
    text: str, target: TargetFacts = HOPPER, choice: ProductChoice = ProductChoice.AUTO
) -> list[Product]:
    """The products of a graph that kernels compute."""
    return list(choose_products(parse_graph(text), target, choice).by_result.values())


@pytest.mark.parametrize("target", [HOPPER, V4])
def test_a_bias_is_added_by_the_kernel(target: TargetFacts) -> None:
    (found,) = by_kernels(BIASED, target)
    assert (found.x, found.weight, found.bias) == (1, 2, 0)


def test_a_sum_that_may_be_scaled_is_the_library_s() -> None:
    """A graph does not show `beta` and `alpha`."""
    scaled = BIASED.replace("is_unscaled=true, ", "")
    found = choose_products(parse_graph(scaled), HOPPER, ProductChoice.OWN)
    assert not found.by_result
    assert found.notes == ("products by the framework: 1 that scale the product or what they add",)


def test_a_sum_with_another_shape_is_no_bias() -> None:
    assert not by_kernels(BIASED.replace("bf16[1024]@[1]", "bf16[1, 1024]@[1024, 1]"))


def test_the_request_decides_about_products() -> None:
    text = BIASED.replace("[4, ", "[40, ")
    assert by_kernels(text, choice=ProductChoice.OWN)
    assert not by_kernels(BIASED, choice=ProductChoice.LIBRARY)
    ampere = target_facts("cuda:sm_80")
    assert by_kernels(text, ampere, ProductChoice.OWN)
    assert not by_kernels(text, ampere)


def test_kernels_compute_many_rows_if_the_request_asks_for_it() -> None:
    many = BIASED.replace("[4, ", "[2048, ")
    (found,) = by_kernels(many, target_facts("cuda:sm_80"), ProductChoice.OWN)
    assert found.slices == 1
    ampere = target_facts("cuda:sm_80")
    assert not by_kernels(many, ampere)
    (found,) = by_kernels(many, ampere, ProductChoice.OWN)
    assert choose_products(parse_graph(many), HOPPER).notes == (
        "products by the framework: 1 of more than 64 rows with nothing to compute behind them",
    )


@pytest.mark.parametrize("size", ["4", "2048", "1024"])
def test_a_product_without_terms_or_results_is_the_library_s(size: str) -> None:
    empty = BIASED.replace(size, "0")
    assert not by_kernels(empty, choice=ProductChoice.OWN)


def test_the_request_s_choice_is_the_reason_in_the_report() -> None:
    graph = parse_graph(BIASED)
    (own,) = choose_products(graph, HOPPER, ProductChoice.OWN).notes
    assert own == "product: 4 x 1024 (node 1) by a kernel: the request asks for kernels"
    (library,) = choose_products(graph, HOPPER, ProductChoice.LIBRARY).notes
    assert library == "products by the framework: 1 because the request asks for the library"


def test_a_weight_may_have_contiguous_columns() -> None:
    columns = """\
graph prims 1
%0: f16[4, 2048]@[2048, 1] = input "x"
%1: f16[2048, 1024]@[1024, 1] = input "w"
%2: f16[4, 1024]@[1024, 1] = extern(%0, %1; is_contraction=true, node=1, op="aten.mm.default") from [1]
return %2: f16[4, 1024]@[1024, 1]
"""
    (found,) = by_kernels(columns, choice=ProductChoice.OWN)
    assert found.has_columns
    assert not by_kernels(columns, V4, ProductChoice.OWN)
    turned = columns.replace("@[1024, 1] = input", "@[1, 2048] = input")
    assert not by_kernels(turned, choice=ProductChoice.OWN)


GELU = BIASED.replace(
    "return %4: bf16[4, 1024]@[1024, 1]",
    """\
%5: f32[4, 1024] = convert(%4; dtype=f32)
%6: f32[4, 1024] = tanh(%5)
%7: bf16[4, 1024] = convert(%6; dtype=bf16)
return %7: bf16[4, 1024]@[1024, 1]""",
)


def test_a_kernel_that_is_saved_counts_as_time_of_the_library() -> None:
    def notes(text: str) -> str:
        return choose_products(parse_graph(text), HOPPER).notes[0]

    assert "for a kernel after it" not in notes(BIASED)
    assert "1 for the framework and 2.00 for a kernel after it" in notes(GELU)
    reduced = GELU.replace("[4, 1024] = tanh(%5)", "[4] = sum(%5; dims=[1])").replace(
        "bf16[4, 1024] = convert(%6; dtype=bf16)\nreturn %7: bf16[4, 1024]@[1024, 1]",
        "bf16[4] = convert(%6; dtype=bf16)\nreturn %7: bf16[4]@[1]",
    )
    assert "for a kernel after it" not in notes(reduced)


def test_a_gpu_computes_many_rows_by_a_kernel_if_that_saves_another_kernel() -> None:
    many = GELU.replace("[4, ", "[2048, ")
    (note,) = choose_products(parse_graph(many), HOPPER).notes
    assert note == (
        "product: 2048 x 1024 (node 1) by a kernel: expected times are 1.04 for a kernel, 1 for the"
        " framework and 0.32 for a kernel after it, in times of the framework's"
    )
    # The saved kernel is a small part of a sum of many terms.
    long = GELU.replace("[4, ", "[1000, ").replace("2048", "65536")
    (note,) = choose_products(parse_graph(long), HOPPER).notes
    assert "by the framework: expected times are 1.04 for a kernel, 1 for the framework" in note


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("bf16", "f16", None),
        ("2048]@[2048, 1]", "2044]@[2044, 1]", "by factors with rows of no multiple of 16 bytes"),
        ("2048]@[2048, 1]", "32]@[32, 1]", "of less than 64 terms or 64 columns"),
        ("1024", "32", "of less than 64 terms or 64 columns"),
    ],
)
def test_many_rows_are_of_kinds_that_were_timed(old: str, new: str, reason: str | None) -> None:
    many = GELU.replace("[4, ", "[512, ").replace(old, new)
    terms = new.partition("]")[0]
    if terms.isdigit() and old.startswith("2048"):
        many = many.replace("bf16[2048, 1024]", f"bf16[{terms}, 1024]")
    (note,) = choose_products(parse_graph(many), HOPPER).notes
    assert (reason or "by a kernel") in note


@pytest.mark.parametrize(("rows", "is_by_kernels"), [(128, False), (192, True)])
def test_long_sums_of_few_results_are_the_library_s(rows: int, *, is_by_kernels: bool) -> None:
    long = GELU.replace("[4, ", f"[{rows}, ").replace("2048", "4096")
    (note,) = choose_products(parse_graph(long), HOPPER).notes
    assert ("by a kernel" in note) == is_by_kernels
    assert is_by_kernels or note.endswith("1 of many terms with too few results to fill the chip")
    assert by_kernels(GELU.replace("[4, ", f"[{rows}, "))


def test_many_rows_before_functions_of_another_tensor_are_the_library_s() -> None:
    many = GELU.replace("[4, ", "[2048, ").replace(
        "%6: f32[2048, 1024] = tanh(%5)",
        """\
%8: bf16[2048, 1024]@[1024, 1] = input "other"
%9: f32[2048, 1024] = convert(%8; dtype=f32)
%10: f32[2048, 1024] = tanh(%9)
%6: f32[2048, 1024] = mul(%5, %10)""",
    )
    head, _, body = many.partition("%3:")
    line = '%8: bf16[2048, 1024]@[1024, 1] = input "other"\n'
    many = head + line + "%3:" + body.replace(line, "")
    assert choose_products(parse_graph(many), HOPPER).notes == (
        "products by the framework: 1 before functions of another tensor, too, which fill the"
        " registers",
    )
    added = many.replace("%10: f32[2048, 1024] = tanh(%9)", "%10: f32[2048, 1024] = neg(%9)")
    assert by_kernels(added)


GATED = """\
graph prims 1
%0: bf16[4, 2048]@[2048, 1] = input "x"
%1: bf16[1024, 2048]@[2048, 1] = input "gate"
%2: bf16[1024, 2048]@[2048, 1] = input "up"
%3: bf16[2048, 1024] = permute(%1; dims=[1, 0])
%4: bf16[2048, 1024] = permute(%2; dims=[1, 0])
%5: bf16[4, 1024]@[1024, 1] = extern(%0, %3; is_contraction=true, node=1, op="aten.mm.default")
%6: bf16[4, 1024]@[1024, 1] = extern(%0, %4; is_contraction=true, node=2, op="aten.mm.default")
%7: f32[4, 1024] = convert(%5; dtype=f32)
%8: f32[4, 1024] = convert(%6; dtype=f32)
%9: f32[4, 1024] = mul(%7, %8)
%10: bf16[4, 1024] = convert(%9; dtype=bf16)
return %10: bf16[4, 1024]@[1024, 1]
"""


def test_a_kernel_after_two_products_is_saved_once() -> None:
    first, second = choose_products(parse_graph(GATED), HOPPER).notes
    assert "2.00 for a kernel after it" in first
    assert "for a kernel after it" not in second


@pytest.mark.parametrize(
    ("rows", "n", "k", "slices"),
    [(16, 1024, 4096, 1), (17, 1024, 4096, 4), (64, 4096, 4096, 1), (64, 1024, 1000, 1)],
)
def test_sums_of_many_rows_are_split_where_tiles_are_few(
    rows: int, n: int, k: int, slices: int
) -> None:
    text = BIASED.replace("1024", "N").replace("2048", "K").replace("[4, ", f"[{rows}, ")
    (found,) = by_kernels(text.replace("N", str(n)).replace("K", str(k)), choice=ProductChoice.OWN)
    assert found.slices == slices


ASCEND = target_facts("ascend:910b")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_cube_cores_compute_products_if_the_request_asks_for_it(dtype: str) -> None:
    text = BIASED.replace("bf16", dtype).replace("[4, ", "[2048, ")
    (found,) = by_kernels(text, ASCEND, ProductChoice.OWN)
    assert (found.is_tiled, found.bias, found.slices) == (True, 0, 1)
    assert not by_kernels(text, ASCEND)
    chosen_here = choose_products(parse_graph(text), ASCEND, ProductChoice.OWN)
    assert chosen_here.factors == (DType.F16, DType.BF16, DType.F32)
    assert not chosen_here.strided


def test_the_report_says_why_cube_cores_do_not_compute_a_product() -> None:
    def notes(text: str, choice: ProductChoice = ProductChoice.OWN) -> tuple[str, ...]:
        found = choose_products(parse_graph(text), ASCEND, choice)
        assert not found.by_result
        return found.notes

    assert notes(BIASED.replace("bf16", "f64")) == (
        "products by the framework: 1 of f64, for which the target has no kernels",
    )
    assert notes(BIASED.replace(", is_unscaled=true", "")) == (
        "products by the framework: 1 that scale the product or what they add",
    )
    assert notes(BIASED, ProductChoice.LIBRARY) == (
        "products by the framework: 1 because the request asks for the library",
    )
