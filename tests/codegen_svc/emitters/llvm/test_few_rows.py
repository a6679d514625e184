"""Products of few rows by stored weights, whose terms are summed in vectors."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.llvm.vector_sums import VectorSums, vector_sums
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import NUMPY, built, dots, run, run_targets, stage_text

PAIRS, PLAIN = "cpu:x86-64-v4-bf16-amd", "cpu:x86-64-v4-amd"
DTYPES = ("f32", "f16", "bf16")


def product(rows: int, n: int, k: int, dtype: str = "f32", groups: int = 1) -> Kernel:
    """The kernel of a product of `rows` rows by a weight (n, k), for each of some groups."""
    lines = [
        "kernel few_rows",
        f"param in in0: {dtype}[{groups * rows * k}]",
        f"param in in1: {dtype}[{groups * n * k}]",
        *(f"param out out{row}: f32[{groups * n}]" for row in range(rows)),
        *((f"for d1 in {groups}",) if groups > 1 else ()),
        f"for d0 in {n}",
        f"reduce r0 in {k}",
    ]
    group = {name: f"{size}*d1 + " if groups > 1 else "" for name, size in _sizes(rows, n, k)}
    body = [f"{dtype} = load in1[{group['weight']}{k}*d0 + r0]", "f32 = convert %0"]
    for row in range(rows):
        at = len(body)
        body += [
            f"{dtype} = load in0[{group['x']}r0 + {row * k}]",
            f"f32 = convert %{at}",
            f"f32 = mul %{at + 1}, %1",
            f"f32 = sum %{at + 2}",
            f"store out{row}[{group['out']}d0] = %{at + 3}",
        ]
    numbered = (
        f"  {line}" if line.startswith("store") else f"  %{at}: {line}"
        for at, line in enumerate(body)
    )
    return parse_kernel("\n".join((*lines, *numbered)) + "\n")


def _sizes(rows: int, n: int, k: int) -> list[tuple[str, int]]:
    return [("weight", n * k), ("x", rows * k), ("out", n)]


def sums_of(kernel: Kernel, vector_bits: int = 512, target: str = PLAIN) -> VectorSums:
    found = vector_sums(kernel, vector_bits, dots(target))
    assert found is not None
    return found


def inputs(kernel: Kernel) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        p.name: draw.standard_normal(p.size_elems.as_int()).astype(NUMPY[p.dtype])
        for p in kernel.params
    }


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [
        *((1, 64, 512), (1, 67, 1032), (1, 7, 14336), (2, 33, 512), (3, 20, 512), (8, 15, 512)),
        # No cache holds these rows: units have several groups, and blocks of terms.
        *((2, 66, 8192), (5, 33, 5120), (8, 64, 4096), (7, 13, 4096), (8, 40, 1184)),
        (12, 10, 2048),
    ],
)
def test_sums_are_those_of_float64(rows: int, n: int, k: int, dtype: str, target: str) -> None:
    kernel = product(rows, n, k, dtype)
    given = inputs(kernel)
    assert run(kernel, given, target=target) == 0
    x, weight = (given[name].astype(np.float64) for name in ("in0", "in1"))
    expected = x.reshape(rows, k) @ weight.reshape(n, k).T
    found = np.stack([given[f"out{row}"] for row in range(rows)])
    # Products of 16 bits are exact in f32. Blocks, lanes and vectors have sums of their own.
    assert np.abs(found - expected).max() <= 40 * 2.0**-24 * np.sqrt(k)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_groups_of_rows_and_weights_are_multiplied_each(dtype: str, target: str) -> None:
    kernel = product(3, 24, 4096, dtype, groups=5)
    given = inputs(kernel)
    assert run(kernel, given, target=target) == 0
    x, weight = (given[name].astype(np.float64) for name in ("in0", "in1"))
    expected = np.einsum("gmk,gnk->mgn", x.reshape(5, 3, -1), weight.reshape(5, 24, -1))
    found = np.stack([given[f"out{row}"].reshape(5, 24) for row in range(3)])
    np.testing.assert_allclose(found, expected, atol=1e-3)


TWO_WEIGHTS = """\
kernel two_weights
param in in0: bf16[512]
param in in1: {first}[10240]
param in in2: {second}[10240]
param out out0: f32[20]
param out out1: f32[20]
for d0 in 20
reduce r0 in 512
  %0: bf16 = load in0[r0]
  %1: f32 = convert %0
  %2: {first} = load in1[512*d0 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  store out0[d0] = %5
  %7: {second} = load in2[512*d0 + r0]
  %8: f32 = convert %7
  %9: f32 = mul %1, %8
  %10: f32 = sum %9
  store out1[d0] = %10
"""


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("types", [("bf16", "f32"), ("f32", "bf16"), ("bf16", "bf16")])
def test_two_weights_may_have_different_types(types: tuple[str, str], target: str) -> None:
    kernel = parse_kernel(TWO_WEIGHTS.format(first=types[0], second=types[1]))
    given = inputs(kernel)
    assert run(kernel, given, target=target) == 0
    x, *weights = (given[name].astype(np.float64) for name in ("in0", "in1", "in2"))
    for weight, name in zip(weights, ("out0", "out1"), strict=True):
        np.testing.assert_allclose(given[name], weight.reshape(20, 512) @ x, atol=1e-4)


def test_each_of_two_weights_is_asked_for_ahead() -> None:
    """They are at equal positions of different memory."""
    kernel = parse_kernel(TWO_WEIGHTS.format(first="bf16", second="bf16"))
    assert len(sums_of(kernel).fetched) == 2


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize(
    ("rows", "n", "k", "dtype"),
    [(8, 67, 512, "bf16"), (8, 67, 8192, "bf16"), (8, 301, 4096, "bf16"), (1, 67, 2048, "f32")],
)
def test_sums_do_not_depend_on_the_place_of_a_result(
    rows: int, n: int, k: int, dtype: str, target: str
) -> None:
    """Results that fill no unit are computed one by one, but their terms are added alike."""
    kernel = product(rows, n, k, dtype)
    given = inputs(kernel)
    given["in1"] = np.tile(given["in1"][:k], n)
    assert run(kernel, given, target=target) == 0
    for row in range(rows):
        assert len(np.unique(given[f"out{row}"])) == 1


@pytest.mark.parametrize("target", run_targets())
def test_threads_change_no_result(target: str) -> None:
    kernel = product(8, 130, 4096, "bf16")
    outs = []
    for threads in (1, 3):
        given = inputs(kernel)
        assert run(kernel, given, target=target, threads=threads) == 0
        outs.append(np.stack([given[f"out{row}"] for row in range(8)]))
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize(
    ("rows", "n", "together", "vectors"),
    [(1, 64, 1, 4), (2, 64, 4, 2), (4, 64, 4, 1), (8, 64, 2, 1), (8, 63, 3, 1), (12, 64, 2, 1)],
)
def test_sums_of_a_group_fit_registers(rows: int, n: int, together: int, vectors: int) -> None:
    division = sums_of(product(rows, n, 256)).division
    assert (division.together, division.vectors) == (together, vectors)
    assert division.groups == 1


@pytest.mark.parametrize("n", [512, 4096])
def test_rows_that_no_cache_holds_are_taken_in_blocks(n: int) -> None:
    sums = sums_of(product(8, n, 4096))
    division = sums.division
    assert division.groups > 1
    # Threads share the units.
    assert n >= 16 * division.unit_results
    block_terms = division.block_steps * division.vectors * sums.vector_terms
    assert 8 * block_terms * 4 <= 16384
    assert division.groups * division.together * 8 * division.vectors * 64 <= 32768


def test_weights_are_read_once_and_ahead() -> None:
    text = stage_text(built(product(4, 64, 256), PLAIN), "asm")
    assert text.count("prefetch") == 4
    assert text.count("vfmadd") == 16


@pytest.mark.parametrize(
    ("k", "together", "vectors"), [(768, 1, 4), (1024, 4, 2), (1032, 4, 1), (14336, 4, 2)]
)
def test_one_row_of_f32_with_avx2_is_a_plain_read(k: int, together: int, vectors: int) -> None:
    """The processor fetches by itself, several long rows at a time."""
    kernel = product(1, 64, k)
    division = sums_of(kernel, vector_bits=256).division
    assert (division.together, division.vectors, division.groups) == (together, vectors, 1)
    assert "prefetch" not in stage_text(built(kernel, "cpu:x86-64-v3"), "asm")
    assert "prefetch" in stage_text(built(product(1, 64, k, "bf16"), "cpu:x86-64-v3"), "asm")


def test_pairs_are_multiplied_by_one_instruction() -> None:
    kernel = product(8, 64, 256, "bf16")
    text = stage_text(built(kernel, PAIRS), "asm")
    assert text.count("vdpbf16ps") == 16
    assert "vdpbf16ps" not in stage_text(built(kernel, PLAIN), "asm")
    assert sums_of(kernel, target=PAIRS).vector_terms == 32


def test_terms_that_fill_no_vector_of_pairs_are_multiplied_one_by_one() -> None:
    kernel = product(2, 64, 272, "bf16")
    assert not sums_of(kernel, target=PAIRS).is_paired
    assert not sums_of(product(2, 64, 256), target=PAIRS).is_paired


def test_lanes_of_several_sums_are_added_at_once() -> None:
    """16 sums of 16 lanes take 15 additions of vectors."""
    text = stage_text(built(product(8, 64, 256), PLAIN), "asm")
    assert text.count("vaddps") == 15
    assert "vaddss" not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("256*d0 + r0", "256*d0 + 2*r0"),  # terms that are no neighbours
        ("load in0[r0]", "load in0[d0 + r0]"),  # two weights
        ("load in1[256*d0 + r0]", "load in1[r0]"),  # two rows
        ("reduce r0 in 256", "reduce r0 in 250"),  # no whole vectors
        ("mul %3, %1", "maximum %3, %1"),
        ("sum %4", "prod %4"),
    ],
)
def test_other_kernels_have_other_code(old: str, new: str) -> None:
    text = """\
kernel other
param in in0: f32[1024]
param in in1: f32[32768]
param out out0: f32[64]
for d0 in 64
reduce r0 in 256
  %0: f32 = load in1[256*d0 + r0]
  %1: f32 = convert %0
  %2: f32 = load in0[r0]
  %3: f32 = convert %2
  %4: f32 = mul %3, %1
  %5: f32 = sum %4
  store out0[d0] = %5
"""
    assert old in text
    assert vector_sums(parse_kernel(text), 512) is not None
    assert vector_sums(parse_kernel(text.replace(old, new)), 512) is None
