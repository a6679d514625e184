"""Products of few rows by weights of integers: their numbers on each target, and their code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from codegen_svc.emitters.llvm.vector_sums import VectorSums, nibble_of, vector_sums
from examples.integer_weights import with_integer_weights
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.loop_ir import Compute, Kernel
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import FewRowFacts, ProductTimes, TargetFacts, target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import NUMPY, built, run, run_targets, stage_text
from tests.support.contraction_programs import run as run_program
from tests.support.in_process_compiler import Counts
from tests.support.integer_weights import FLOAT8_FORMS, GROUP, INTEGER_FORMS, operands
from tests.support.traced_graphs import traced_one

K = 4 * GROUP
IN_ROWS = [name for name in INTEGER_FORMS if name != "int4-words"]


def facts_of(target: str) -> TargetFacts:
    """The target's facts, with kernels for up to eight rows by weights of any size."""
    facts = target_facts(target)
    times = ProductTimes(0, library=(("1", 1.0),), kernel=(("1", 0.1), ("8", 0.2)))
    known = FewRowFacts(integers=times, shared_integers=times, shared_integer_columns=times)
    return replace(facts, few_rows=known)


def kernel_of(layer: Callable[..., Tensor], *args: Tensor) -> Kernel:
    with torch.no_grad():
        graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    program = optimize(graph, facts_of("cpu:x86-64-v4-amd"), ProductChoice.AUTO).program
    (kernel,) = (kernel for kernel in program.kernels if kernel.reduction)
    return kernel


def sums_of(kernel: Kernel, vector_bits: int = 512) -> VectorSums:
    found = vector_sums(kernel, vector_bits)
    assert found is not None
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 64, K), (2, 33, K), (3, 20, 4096), (5, 48, K), (8, 15, 2048)]
)
@pytest.mark.parametrize("name", INTEGER_FORMS)
def test_errors_are_those_of_eager(name: str, rows: int, n: int, k: int, target: str) -> None:
    torch.manual_seed(rows)
    form, counts = INTEGER_FORMS[name], Counts()
    args = operands(form, rows, n, k)
    found, _ = run_program(facts_of(target), counts, form.layer, *args)
    assert not counts.externs
    exact = form.layer(*(a.double() if a.is_floating_point() else a for a in args))
    errors = [(f.double() - exact).abs().max().item() for f in (found, form.layer(*args))]
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["cpu:x86-64-v3-amd", "cpu:x86-64-v4-amd"])
@pytest.mark.parametrize("name", FLOAT8_FORMS)
def test_one_row_is_multiplied_by_8_bit_floats_and_more_rows_are_not(
    name: str, target: str
) -> None:
    """Each of them is widened by a dozen instructions, in no vectors for several sums."""
    torch.manual_seed(0)
    form = FLOAT8_FORMS[name]
    for rows, is_own in ((1, True), (2, False)):
        args, counts = operands(form, rows, 2 * GROUP, K), Counts()
        found, _ = run_program(target_facts(target), counts, form.layer, *args)
        assert bool(counts.externs) is not is_own
        exact = form.layer(*(a.double() if a.is_floating_point() else a for a in args))
        errors = [(f.double() - exact).abs().max().item() for f in (found, form.layer(*args))]
        assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_floats_are_multiplied_too(dtype: torch.dtype, target: str) -> None:
    form, counts = INTEGER_FORMS["int4-neighbours"], Counts()
    x, packed, *scales = operands(form, 2, 32, K)
    args = (x.to(dtype), packed, *(scale.to(dtype) for scale in scales))
    found, _ = run_program(facts_of(target), counts, form.layer, *args)
    assert not counts.externs
    exact = form.layer(*(a.double() if a.is_floating_point() else a for a in args))
    error = (form.layer(*args).double() - exact).abs().max().item()
    assert (found.double() - exact).abs().max().item() <= 2 * error


ROUNDED = """\
kernel rounded
param in in0: f32[64]
param in in1: u8[512]
param in in2: {dtype}[8]
param out out0: f32[8]
for d0 in 8
reduce r0 in 64
  %0: f32 = load in0[r0]
  %1: u8 = load in1[64*d0 + r0]
  %2: f32 = convert %1
  %3: {dtype} = load in2[d0]
  %4: f32 = convert %3
  %5: f32 = mul %2, %4
  %6: {dtype} = convert %5
  %7: f32 = convert %6
  %8: f32 = mul %0, %7
  %9: f32 = sum %8
  store out0[d0] = %9
"""


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_weights_are_rounded_where_the_program_does(dtype: str, target: str) -> None:
    """One term is 1 and the others are 0, so that a sum is a rounded weight."""
    kernel = parse_kernel(ROUNDED.format(dtype=dtype))
    sums_of(kernel)
    kind = NUMPY[kernel.param("in2").dtype]
    draw = np.random.default_rng(0)
    x, weight = np.zeros(64, np.float32), draw.integers(0, 256, 512).astype(np.uint8)
    x[37] = 1
    scale = draw.standard_normal(8).astype(kind)
    scale[1:4] = np.nan, np.inf, 1e-5
    out = np.zeros(8, np.float32)
    given = {"in0": x, "in1": weight, "in2": scale, "out0": out}
    assert run(kernel, given, target=target) == 0
    wide = weight.reshape(8, 64).astype(np.float32) * scale.astype(np.float32)[:, None]
    rounded = wide.astype(kind).astype(np.float32)
    expected = np.where(np.isfinite(rounded).all(1), rounded[:, 37], np.nan)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("name", IN_ROWS)
def test_long_rows_are_summed_in_blocks(name: str, target: str) -> None:
    """14,336 terms: more than a block has, and no multiple of it."""
    form, counts = INTEGER_FORMS[name], Counts()
    args = operands(form, 1, 12, 14336)
    found, _ = run_program(facts_of(target), counts, form.layer, *args)
    exact = form.layer(*(a.double() if a.is_floating_point() else a for a in args))
    error = (form.layer(*args).double() - exact).abs().max().item()
    assert (found.double() - exact).abs().max().item() <= 1.05 * error


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("bits", [8, 4])
def test_layers_of_a_model_store_no_weight(bits: int, target: str) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 64)).bfloat16()
    x, expected = torch.randn(3, 512).bfloat16(), copy.deepcopy(layers)
    model, counts = with_integer_weights(layers, bits).requires_grad_(requires_grad=False), Counts()
    found, _ = run_program(facts_of(target), counts, model, x)
    assert not counts.externs
    torch.testing.assert_close(found, model(x), atol=0.02, rtol=0.02)
    # The integers stand for the weights: half a step of 255 or of 15 in each of 768 terms.
    torch.testing.assert_close(found, expected(x), atol=0.02 if bits == 8 else 0.2, rtol=0.05)


@pytest.mark.parametrize("rows", [1, 4])
def test_threads_change_no_result(rows: int) -> None:
    form = INTEGER_FORMS["int4-neighbours"]
    kernel = kernel_of(form.layer, *operands(form, rows, 40, K))
    draw = np.random.default_rng(0)
    given = {}
    for param in kernel.params:
        size = param.size_elems.as_int()
        if param.dtype.is_float:
            given[param.name] = draw.standard_normal(size).astype(NUMPY[param.dtype])
        else:
            given[param.name] = draw.integers(0, 256, size).astype(np.uint8)
    outs = []
    for threads in (1, 3):
        own = {name: array.copy() for name, array in given.items()}
        assert run(kernel, own, threads=threads) == 0
        outs.append([own[p.name] for p in kernel.params if p.name.startswith("out")])
    for one, other in zip(*outs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["int4-neighbours", "int4-halves"])
def test_weights_of_four_bits_are_chosen_from_a_table(name: str) -> None:
    """A shift, a permutation and a multiply-add for 16 of them: no conversion is in the loop."""
    kernel = kernel_of(INTEGER_FORMS[name].layer, *operands(INTEGER_FORMS[name], 1, 64, K))
    text = stage_text(built(kernel, "cpu:x86-64-v4-amd"), "asm")
    assert text.count("vpermd") + text.count("vpermps") == 8
    assert "vcvtdq2ps" not in text
    assert "vpmovzxbd" not in text


def test_bytes_are_converted_as_they_are() -> None:
    """No step rounds them to 16 bits, which hold them exactly."""
    form = INTEGER_FORMS["int8-after"]
    kernel = kernel_of(form.layer, *operands(form, 1, 64, K))
    conversions = [s for s in kernel.body if isinstance(s, Compute) and s.op == "convert"]
    varying = sums_of(kernel).varying
    inside = [s for n, s in enumerate(kernel.body) if n in varying and s in conversions]
    assert len(inside) == 1


@pytest.mark.parametrize("name", IN_ROWS)
def test_memory_is_asked_for_weights_ahead(name: str) -> None:
    kernel = kernel_of(INTEGER_FORMS[name].layer, *operands(INTEGER_FORMS[name], 1, 64, K))
    text = stage_text(built(kernel, "cpu:x86-64-v4-amd"), "asm")
    assert text.count("prefetch") == 1


@pytest.mark.parametrize(
    ("name", "rows", "together", "has_loop"),
    [
        ("int8-before", 1, 1, False),
        ("int8-before", 3, 4, False),
        ("int8-before", 8, 2, False),
        ("int4-neighbours", 1, 1, False),
        ("int4-neighbours", 3, 4, True),
    ],
)
def test_units_of_rows_that_no_cache_holds_have_several_results(
    name: str, rows: int, together: int, *, has_loop: bool
) -> None:
    sums = sums_of(
        kernel_of(INTEGER_FORMS[name].layer, *operands(INTEGER_FORMS[name], rows, 64, 4096))
    )
    assert (sums.division.together, sums.division.has_loop) == (together, has_loop)


def test_a_number_of_results_that_four_does_not_divide_has_smaller_units() -> None:
    form = INTEGER_FORMS["int8-before"]
    sums = sums_of(kernel_of(form.layer, *operands(form, 3, 33, 4096)))
    assert sums.division.together == 3


def test_terms_that_fill_no_vector_have_other_code() -> None:
    form = INTEGER_FORMS["int8-before"]
    args = torch.randn(1, 520).bfloat16(), *form.store(16, 520, "cpu")
    kernel = kernel_of(form.layer, *args)
    assert vector_sums(kernel, 512) is None
    assert vector_sums(kernel, 256) is not None


def test_sums_of_other_terms_than_products_have_other_code() -> None:
    text = WORDS.format(size=1024, offset=3).replace("u8", "f32").replace("convert %1", "neg %1")
    assert vector_sums(parse_kernel(text), 512) is None


WORDS = """\
kernel words
param in in0: f32[64]
param in in1: u8[{size}]
param out out0: f32[4]
for d0 in 4
reduce r0 in 64
  %0: f32 = load in0[r0]
  %1: u8 = load in1[256*d0 + 4*r0 + {offset}]
  %2: f32 = convert %1
  %3: f32 = mul %0, %2
  %4: f32 = sum %3
  store out0[d0] = %4
"""


@pytest.mark.parametrize("offset", [0, 2, 3])
def test_no_byte_behind_a_matrix_is_read(offset: int) -> None:
    """A word is loaded only if its last byte is needed."""
    kernel = parse_kernel(WORDS.format(size=1021 + offset, offset=offset))
    found = vector_sums(kernel, 512)
    assert (found is not None) == (offset == 3)


def test_what_makes_x_is_no_part_of_putting_it_in_order() -> None:
    """Stored in the order of the integers of a word, a norm's results would be far apart."""
    form = INTEGER_FORMS["int4-neighbours"]

    def layer(x: Tensor, *stored: Tensor) -> Tensor:
        return form.layer(functional.rms_norm(x, (K,)), *stored)

    args = operands(form, 1, 64, K)
    with torch.no_grad():
        graph = decompose_to_prims(traced_one(layer, *args).graph).graph
    program = optimize(graph, facts_of("cpu:x86-64-v4-amd"), ProductChoice.AUTO).program
    norm, order, product = program.kernels
    assert [bool(kernel.reduction) for kernel in (norm, order, product)] == [True, False, True]
    assert len(norm.outer) + len(norm.reduction) <= 2


@pytest.mark.parametrize(("length", "is_vector"), [(40, True), (900, False)])
def test_long_chains_of_operations_have_other_code(length: int, *, is_vector: bool) -> None:
    """Each operation takes Python's stack, and a copy for each vector of a step."""
    lines = WORDS.format(size=1024, offset=3).splitlines()
    chain = [f"  %{n}: f32 = mul %{n - 1}, %0" for n in range(4, 4 + length)]
    last = 3 + length
    end = [f"  %{last + 1}: f32 = sum %{last}", f"  store out0[d0] = %{last + 1}"]
    kernel = parse_kernel("\n".join([*lines[:-2], *chain, *end]) + "\n")
    assert (vector_sums(kernel, 512) is not None) == is_vector
    assert stage_text(built(kernel, "cpu:x86-64-v4-amd"), "asm")


def test_other_operations_have_other_code() -> None:
    text = WORDS.format(size=1024, offset=3).replace("mul %0, %2", "div %0, %2")
    assert vector_sums(parse_kernel(text), 512) is None


@pytest.mark.parametrize(
    ("operation", "shift"),
    [
        ("bit_and %0, %1", 0),
        ("shr_arith %0, %2", 4),
        ("shl %0, %2", 0),
        ("bit_and %0, %3", None),
        ("shr_arith %0, %4", None),
        ("bit_or %0, %1", None),
    ],
)
def test_four_bits_are_those_that_one_operation_leaves(operation: str, shift: int | None) -> None:
    kernel = parse_kernel(
        f"""\
kernel bits
param in in0: u8[8]
param out out0: u8[8]
for d0 in 8
  %0: u8 = load in0[d0]
  %1: u8 = 15
  %2: u8 = 4
  %3: u8 = 31
  %4: u8 = 3
  %5: u8 = {operation}
  store out0[d0] = %5
"""
    )
    found = nibble_of(kernel, 5)
    assert (None if found is None else found.shift) == shift
