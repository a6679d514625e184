"""Which products kernels compute: by the target's times for the number of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import TargetFacts, target_facts
from optimizer_svc.analysis.product_operands import Product
from optimizer_svc.passes.choose_products import choose_products
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, tensor, tensor_with_strides

V4 = target_facts("cpu:x86-64-v4")
V3 = target_facts("cpu:x86-64-v3")

TWO_LAYERS = """\
graph prims 1
%0: f32[4, 1024]@[1024, 1] = input "x"
%1: f32[1024, 1024]@[1024, 1] = input "w"
%2: f32[5, 1024]@[1024, 1] = input "y"
%3: f32[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%4: f32[4, 1024]@[1024, 1] = extern(%0, %3; is_contraction=true, node=1, op="aten.mm.default") from [1]
%5: f32[5, 1024]@[1024, 1] = extern(%2, %3; is_contraction=true, node=2, op="aten.mm.default") from [2]
return %4: f32[4, 1024]@[1024, 1], %5: f32[5, 1024]@[1024, 1]
"""


@pytest.mark.golden
def test_the_report_states_both_times_and_the_choice() -> None:
    assert_golden(
        before_and_after("choose-products", TWO_LAYERS, "cpu:x86-64-v4"),
        """\
-- before choose-products: graph
graph prims 1
%0: f32[4, 1024]@[1024, 1] = input "x"
%1: f32[1024, 1024]@[1024, 1] = input "w"
%2: f32[5, 1024]@[1024, 1] = input "y"
%3: f32[1024, 1024] = permute(%1; dims=[1, 0]) from [0]
%4: f32[4, 1024]@[1024, 1] = extern(%0, %3; is_contraction=true, node=1, op="aten.mm.default") from [1]
%5: f32[5, 1024]@[1024, 1] = extern(%2, %3; is_contraction=true, node=2, op="aten.mm.default") from [2]
return %4: f32[4, 1024]@[1024, 1], %5: f32[5, 1024]@[1024, 1]
-- after: products
%4: weight %1
note: product: 4 x 1024 (node 1) by a kernel: expected times are 1.85 for a kernel, 2.05 for the framework, in its times for one row
note: product: 5 x 1024 (node 2) by the framework: expected times are 2.05 for a kernel, 2.05 for the framework, in its times for one row
""",
    )


def chosen(rows, target=V4, dtype=DType.F32, n=2048, k=2048, op="aten.mm.default") -> bool:
    """Whether a kernel computes the product of (rows, k) and a transposed weight (n, k)."""
    make = Maker([SizeSymbol("s0", 2, 8)])
    x = make.add_input(tensor(rows, k, dtype=dtype))
    weight = make.add_input(tensor_with_strides(n, k, dtype=dtype))
    transposed = make.add("permute", weight, dims=(1, 0))
    result = tensor_with_strides(rows, n, dtype=dtype)
    (y,) = make.add_extern(op, 0, [x, transposed], [result], is_contraction=True)
    return y in choose_products(make.returning(y), target).by_result


@pytest.mark.parametrize(
    ("dtype", "faster_rows"),
    [
        (DType.F32, {4, *range(7, 20)}),
        (DType.BF16, {*range(1, 7)}),
        (DType.F16, {*range(1, 7)}),
    ],
)
def test_kernels_compute_the_numbers_of_rows_that_they_compute_faster(dtype, faster_rows) -> None:
    assert {m for m in range(1, 20) if chosen(m, dtype=dtype)} == faster_rows


def test_a_processor_without_avx512_has_times_of_its_own() -> None:
    assert {m for m in range(1, 20) if chosen(m, V3)} == {2, 3, 4, 5, 6, 8}
    assert {m for m in range(1, 20) if chosen(m, V3, DType.BF16)} == set(range(1, 13))


@pytest.mark.parametrize(
    ("level", "dtype", "faster_rows"),
    [
        ("v4", DType.F32, {*range(1, 20)}),
        ("v4", DType.BF16, {1, 2}),
        ("v4", DType.F16, {1, 2}),
        ("v4-bf16", DType.BF16, {*range(1, 11), *range(16, 20)}),
        ("v4-bf16", DType.F16, {*range(1, 13)}),
        ("v3", DType.F32, {*range(1, 13), *range(16, 20)}),
        ("v3", DType.BF16, {*range(1, 20)}),
        ("v3", DType.F16, {*range(1, 20)}),
    ],
)
def test_amd_processors_have_times_of_their_own(level, dtype, faster_rows) -> None:
    target = target_facts(f"cpu:x86-64-{level}-amd")
    assert {m for m in range(1, 20) if chosen(m, target, dtype)} == faster_rows


@pytest.mark.parametrize(("dtype", "terms"), [(DType.F32, 16), (DType.BF16, 32)])
def test_several_rows_are_the_library_s_if_their_terms_fill_no_vectors(dtype, terms) -> None:
    target = target_facts("cpu:x86-64-v4-bf16-amd")
    for rows in (1, 2, 8):
        assert chosen(rows, target, dtype, k=2048 + terms)
        assert chosen(rows, target, dtype, k=2048 + terms // 2) is (rows == 1)


def test_a_small_weight_and_f64_are_the_library_s() -> None:
    assert chosen(4)
    assert not chosen(4, n=511)
    amd = target_facts("cpu:x86-64-v4-amd")
    assert chosen(symbol("s0"), amd, n=80)
    assert not chosen(symbol("s0"), amd, n=64)
    assert not chosen(4, dtype=DType.F64)


def test_a_weight_whose_columns_are_contiguous_is_the_library_s() -> None:
    plain = TWO_LAYERS.replace('@[1024, 1] = input "w"', '@[1, 1024] = input "w"')
    assert choose_products(parse_graph(TWO_LAYERS), V4).by_result
    assert not choose_products(parse_graph(plain), V4).by_result


def test_a_product_by_a_weight_that_is_not_transposed_is_the_library_s() -> None:
    plain = TWO_LAYERS.replace("extern(%0, %3;", "extern(%0, %1;")
    assert list(choose_products(parse_graph(TWO_LAYERS), V4).by_result) == [4]
    assert not choose_products(parse_graph(plain), V4).by_result


def test_operands_that_are_no_product_s_are_left_to_the_library() -> None:
    """The frontend checks shapes; a graph may come from elsewhere."""
    for wrong in (
        TWO_LAYERS.replace("%0: f32[4, 1024]@[1024, 1]", "%0: f32[4, 512]@[512, 1]"),
        TWO_LAYERS.replace("%0: f32[4, 1024]@[1024, 1]", "%0: f32[4096]@[1]"),
        TWO_LAYERS.replace("extern(%0, %3;", "extern(%3;"),
    ):
        assert not choose_products(parse_graph(wrong), V4).by_result


WIDE = """\
graph prims 1
%0: f32[384]@[1] = input "bias"
%1: f32[32, 1024]@[1024, 1] = input "x"
%2: f32[384, 1024]@[1024, 1] = input "w"
%3: f32[1024, 384] = permute(%2; dims=[1, 0]) from [0]
%4: f32[32, 384]@[384, 1] = extern(%0, %1, %3; is_contraction=true, is_unscaled=true, node=1, op="aten.addmm.default") from [1]
return %4: f32[32, 384]@[384, 1]
"""


@pytest.mark.parametrize("level", ["v3", "v4"])
def test_amd_processors_compute_products_in_tiles_where_facts_say_that_they_are_faster(
    level: str,
) -> None:
    amd, other = (target_facts(f"cpu:x86-64-{level}{maker}") for maker in ("-amd", ""))
    found = choose_products(parse_graph(WIDE), amd)
    assert found.by_result == {4: Product(1, 2, 0, is_tiled=True)}
    (note,) = found.notes
    assert note.startswith("product: 32 x 384 (node 1) by a kernel in tiles: expected times are 1 ")
    assert note.endswith("as multiples of a kernel's")
    assert not choose_products(parse_graph(WIDE), other).by_result
    first = 1 if level == "v4" else 16
    assert {m for m in range(1, 20) if chosen(m, amd, n=512, k=512)} == set(range(first, 20))
    # With AVX2 the framework has no fast code for 16 bits.
    assert chosen(64, amd, DType.BF16) is chosen(64, amd, DType.F16) is (level == "v3")
    assert not chosen(64, amd, n=256, k=512)


def test_processors_that_multiply_pairs_of_bf16_compute_products_of_them_in_tiles() -> None:
    dots = target_facts("cpu:x86-64-v4-bf16-amd")
    narrow = parse_graph(WIDE.replace("f32", "bf16"))
    assert choose_products(narrow, dots).by_result == {4: Product(1, 2, 0, is_tiled=True)}
    found = choose_products(narrow, target_facts("cpu:x86-64-v4-amd"))
    assert not found.by_result
    # Up to ten rows are sums of rows; the library is faster for up to 15.
    assert {m for m in range(1, 20) if chosen(m, dots, DType.BF16, n=512, k=512)} == {
        *range(1, 11),
        *range(16, 20),
    }
    assert not chosen(64, dots, DType.F16)
    assert not chosen(symbol("s0"), dots, DType.F16)


@pytest.mark.parametrize(
    ("target", "dtypes"),
    [
        ("v3-amd", [DType.F32, DType.BF16, DType.F16]),
        ("v4-amd", [DType.F32]),
        ("v4-bf16-amd", [DType.F32, DType.BF16]),
        # With 512 rows, the library takes 0.95 of a kernel's time.
        ("v4", []),
        ("v3", []),
    ],
)
def test_a_varying_number_of_rows_is_by_kernels_if_they_hardly_lose_with_any_number(
    target: str, dtypes: list[DType]
) -> None:
    facts = target_facts(f"cpu:x86-64-{target}")
    types = (DType.F32, DType.BF16, DType.F16)
    assert [d for d in types if chosen(symbol("s0"), facts, d)] == dtypes


def test_the_report_names_the_number_of_rows_that_decides() -> None:
    text = WIDE.replace("32,", "s0,").replace("prims 1\n", "prims 1\nsize s0 from 2\n", 1)
    found = choose_products(parse_graph(text), target_facts("cpu:x86-64-v4-amd"))
    assert found.by_result == {4: Product(1, 2, 0, is_tiled=True)}
    assert found.notes == (
        "product: s0 x 384 (node 1) by a kernel in tiles: expected times are 1 for a kernel, 1.06 for"
        " the framework, as multiples of a kernel's, for the number of rows with the least",
    )


@pytest.mark.parametrize(
    ("changed", "added", "reason"),
    [
        (
            "extern(%0, %5, %3;",
            "%5: f32[32, 1024] = permute(%6; dims=[1, 0]) from [2]",
            "transposed",
        ),
        ("", "%5: f32[384] = sum(%4; dims=[0]) from [2]", "rows are summed"),
        ("", "%5: f32[32] = sum(%4; dims=[1]) from [2]", ""),
    ],
)
def test_gradients_of_linear_layers_are_the_library_s(
    changed: str, added: str, reason: str
) -> None:
    """Their operands are transposed, or another kernel sums their rows for a bias."""
    amd = target_facts("cpu:x86-64-v4-amd")
    *before, product, end = WIDE.splitlines()
    if changed:
        before.insert(4, '%6: f32[1024, 32]@[32, 1] = input "y"')
        text = [*before, added, product.replace("extern(%0, %1, %3;", changed), end]
    else:
        text = [
            *before,
            product,
            added,
            end.replace("%4:", "%5: f32[" + added[8:].partition("]")[0] + "], %4:"),
        ]
    found = choose_products(parse_graph("\n".join(text) + "\n"), amd)
    assert bool(found.by_result) == (not reason)
    assert not reason or reason in found.notes[0]


def test_a_request_for_kernels_gets_tiles_on_every_processor() -> None:
    for target, choice, count in (
        (V4, ProductChoice.OWN, 1),
        (target_facts("cpu:aarch64"), ProductChoice.OWN, 1),
        (target_facts("cpu:x86-64-v4-amd"), ProductChoice.LIBRARY, 0),
    ):
        assert len(choose_products(parse_graph(WIDE), target, choice).by_result) == count
    narrow = WIDE.replace("384", "48")
    assert not choose_products(parse_graph(narrow), V4, ProductChoice.OWN).by_result


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_arm_s_products_are_the_library_s_unless_a_request_asks_for_kernels(dtype: str) -> None:
    """No times are known, so nothing is multiplied by kernels because of them."""
    graph = parse_graph(WIDE.replace("f32", dtype))
    pairs = target_facts("cpu:aarch64-bf16")
    assert not choose_products(graph, pairs).by_result
    own = choose_products(graph, pairs, ProductChoice.OWN)
    assert [product.is_tiled for product in own.by_result.values()] == [True] * (dtype != "f16")
    without = choose_products(graph, target_facts("cpu:aarch64"), ProductChoice.OWN)
    assert len(without.by_result) == (dtype == "f32")


@pytest.mark.parametrize("target", ["cuda:sm_80", "rocm:gfx942", "cpu:aarch64", "cpu:aarch64-bf16"])
def test_targets_without_measured_times_leave_all_products_to_the_library(target: str) -> None:
    assert not chosen(4, target_facts(target))


def test_hopper_computes_up_to_64_rows_by_kernels() -> None:
    hopper = target_facts("cuda:sm_90a")
    narrow = {m for m in range(1, 70) if chosen(m, hopper, DType.BF16, 4096, 4096)}
    assert narrow == set(range(1, 65))
    assert chosen(4, hopper, DType.BF16, 1024, 4096)
    assert not chosen(4, hopper, DType.BF16, 512, 768)
    assert not chosen(4, hopper, DType.F32, 4096, 4096)


def test_a_chip_offers_the_element_types_of_its_instructions_for_matrices() -> None:
    hopper = target_facts("cuda:sm_90a")
    assert hopper.gpu is not None
    forms = tuple(replace(form, types=("f16",)) for form in hopper.gpu.matrix_instructions)
    chip = replace(hopper, gpu=replace(hopper.gpu, matrix_instructions=forms))
    assert chosen(4, chip, DType.F16, 4096, 4096)
    assert not chosen(4, chip, DType.BF16, 4096, 4096)


def by_choices(target: TargetFacts, *choices: tuple[int, str]) -> tuple[set[int], str]:
    """The results of `TWO_LAYERS` that kernels compute, and the notes."""
    stated = [NodeChoice(node, ProductChoice(choice)) for node, choice in choices]
    text = TWO_LAYERS.replace("f32", "bf16") if target.has_matrix_units else TWO_LAYERS
    found = choose_products(parse_graph(text), target, by_node=stated)
    return {*found.by_result}, "\n".join(found.notes)


@pytest.mark.parametrize("name", ["cpu:x86-64-v4", "cuda:sm_90a", "cuda:sm_80"])
def test_a_choice_of_one_product_replaces_the_times(name: str) -> None:
    target = target_facts(name)
    for one, other in (("own", "library"), ("library", "own")):
        results, notes = by_choices(target, (1, one), (2, other))
        assert results == ({4} if one == "own" else {5})
        assert notes.count("clients measured it as faster") == 2
    results, notes = by_choices(target, (1, "own"), (2, "own"))
    assert results == {4, 5}
    assert "product: 4 x 1024 (node 1) by a kernel: clients measured it as faster" in notes
    assert by_choices(target, (1, "library"), (2, "library"))[0] == set()


def test_a_choice_of_one_product_leaves_the_others_to_the_times() -> None:
    results, notes = by_choices(V4, (2, "own"))
    assert results == {4, 5}
    assert "(node 1) by a kernel: expected times" in notes
    usual = choose_products(parse_graph(TWO_LAYERS), V4)
    assert choose_products(parse_graph(TWO_LAYERS), V4, by_node=()) == usual


def test_a_product_that_no_kernel_computes_stays_with_the_library() -> None:
    graph = TWO_LAYERS.replace("f32[", "f64[")
    found = choose_products(parse_graph(graph), V4, by_node=[NodeChoice(1, ProductChoice.OWN)])
    assert not found.by_result
    assert any("of f64" in note for note in found.notes)
