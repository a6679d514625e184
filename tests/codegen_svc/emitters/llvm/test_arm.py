"""Kernels for Arm processors: their numbers under QEMU, and their instructions."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from codegen_svc.emitters.llvm.dots import dots_of
from codegen_svc.emitters.llvm.parallel import OTHER_VECTORS
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import LlvmFacts
from tests.support.arm_emulator import ArmProcess, needs_arm, run_on_arm
from tests.support.byte_products import byte_factors, bytes_product, exact_product
from tests.support.compiled_kernels import NUMPY, built, pointwise, stage_text
from tests.support.loop_kernels.optimizer_shapes import (
    layer_norm_silu,
    reduce_first,
    reduce_last,
    softmax,
)
from tests.support.loop_kernels.scatters import SCATTER
from tests.support.product_kernels import linear, mixed, wide

F, BF16 = DType.F32, np.dtype(ml_dtypes.bfloat16)
PLAIN, DOTS = "cpu:aarch64", "cpu:aarch64-bf16"
SVE = "cpu:aarch64-sve256"
TARGETS = (PLAIN, DOTS, SVE)
ODD_ULP = 2.0**-23
"""The largest error of a sum that is rounded to odd, as a share of it."""


NEGATION = pointwise("neg", (F,), F, 100_000)
FEW_ROWS = mixed("s0", 64, 1024, "bf16", "bf16", has_columns=False)
ON_ONE_THREAD = parse_kernel(SCATTER.format(mode="add", dtype="f32"))


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(kernel: Kernel, x: np.ndarray, w: np.ndarray, target: str) -> np.ndarray:
    """x @ w.T by a kernel with several threads, in float32."""
    rows, columns = len(x), len(w)
    out = np.full(rows * columns, 7, np.float32)
    given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
    assert run_on_arm(kernel, given, {"s0": rows}, process=ArmProcess(target, 3)) == 0
    return out.reshape(rows, columns).astype(np.float64)


def bf16_factors(rows: int, columns: int, summed: int) -> tuple[np.ndarray, np.ndarray]:
    return floats(rows, summed).astype(BF16), floats(columns, summed, seed=1).astype(BF16)


def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ w.astype(np.float64).T


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "sizes",
    [
        (49, 67, 513),  # tiles with rows, columns and a term past their end
        (1, 64, 256),
        (9, 70, 640),
    ],
)
def test_products_of_bf16_are_within_the_rounding_of_their_sums(
    sizes: tuple[int, int, int], target: str
) -> None:
    rows, columns, summed = sizes
    x, w = bf16_factors(*sizes)
    kernel = mixed("s0" if rows > 1 else 1, columns, summed, "bf16", "bf16", has_columns=False)
    found = product(kernel, x, w, target)
    # A lane adds a pair by two roundings, so a sum has about as many as terms.
    magnitude = exact(np.abs(x), np.abs(w))
    assert (np.abs(found - exact(x, w)) <= (summed + 8) * ODD_ULP * magnitude).all()
    np.testing.assert_allclose(found, exact(x, w), rtol=1e-5, atol=1e-4)


@needs_arm()
def test_roundings_of_pairs_to_odd_have_no_direction() -> None:
    """Sums of positive terms that were cut off would all be too small."""
    x, w = (np.abs(factor) for factor in bf16_factors(16, 64, 2048))
    kernel = mixed("s0", 64, 2048, "bf16", "bf16", has_columns=False)
    errors = (product(kernel, x, w, DOTS) - exact(x, w)) / exact(x, w)
    assert np.abs(errors).max() < 32 * ODD_ULP
    assert abs(errors.mean()) < errors.std()
    assert 0.1 < (errors > 0).mean() < 0.9


@needs_arm()
def test_pairs_take_subnormal_elements_as_0() -> None:
    x, w = np.full((2, 8), 2.0**-130, BF16), np.ones((64, 8), BF16)
    kernel = mixed("s0", 64, 8, "bf16", "bf16", has_columns=False)
    assert set(product(kernel, x, w, DOTS).flat) == {0.0}
    assert set(product(kernel, x, w, PLAIN).flat) == {8 * 2.0**-130}


@needs_arm()
def test_results_of_pairs_are_rounded_to_nearest_even() -> None:
    x, w = bf16_factors(24, 64, 66)
    out = np.zeros(24 * 64, BF16)
    given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
    assert run_on_arm(linear(24, 64, 66), given, process=ArmProcess(DOTS)) == 0
    errors = np.abs(out.reshape(24, 64).astype(np.float64) - exact(x, w))
    of_sums = 66 * ODD_ULP * exact(np.abs(x), np.abs(w))
    assert (errors <= 2.0**-8 * np.abs(exact(x, w)) + of_sums).all()


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(50, 67, 131), (1, 70, 640), (6, 70, 640)])
def test_products_of_bytes_are_exact_on_arm(sizes: tuple[int, int, int], target: str) -> None:
    rows, columns, _ = sizes
    x, w = byte_factors(*sizes)
    x[:, 0] = w[:, 0] = -128
    out = np.full(rows * columns, 7, np.int32)
    given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
    assert run_on_arm(bytes_product(*sizes), given, process=ArmProcess(target, 3)) == 0
    np.testing.assert_array_equal(out.reshape(rows, columns), exact_product(x, w))


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
def test_softmax_of_rows_that_fill_no_vectors(target: str) -> None:
    x, out = floats(30, 709), np.zeros(30 * 709, np.float32)
    given = {"in0": x.reshape(-1), "out0": out}
    assert run_on_arm(softmax(30, 709), given, process=ArmProcess(target, 2)) == 0
    raised = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = raised / raised.sum(1, keepdims=True)
    np.testing.assert_allclose(out.reshape(x.shape), expected, rtol=2e-6)


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
def test_layer_norm_and_what_follows_it(target: str) -> None:
    x, weight, bias = floats(33, 261), floats(261, seed=1), floats(261, seed=2)
    out = np.zeros(x.size, np.float32)
    given = {"in0": x.reshape(-1), "in1": weight, "in2": bias, "out0": out}
    assert run_on_arm(layer_norm_silu(33, 261), given, process=ArmProcess(target)) == 0
    wide = x.astype(np.float64)
    y = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    y = y * weight + bias
    np.testing.assert_allclose(out.reshape(x.shape), y / (1 + np.exp(-y)), rtol=2e-5, atol=2e-6)


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
def test_sums_along_both_axes(target: str) -> None:
    x = floats(70, 301)
    for kernel, axis in (
        (reduce_last("sum", F, F, 70, 301), 1),
        (reduce_first("sum", F, F, 70, 301), 0),
    ):
        out = np.zeros(x.shape[1 - axis], np.float32)
        given = {"in0": x.reshape(-1), "out0": out}
        assert run_on_arm(kernel, given, process=ArmProcess(target)) == 0
        np.testing.assert_allclose(out, x.astype(np.float64).sum(axis), rtol=1e-5, atol=1e-5)


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [5, 67, 1003])
def test_elementary_functions_and_their_tails(count: int, target: str) -> None:
    x = floats(count) * 4
    for op, function in (("exp", np.exp), ("tanh", np.tanh)):
        out = np.zeros(count, np.float32)
        kernel = pointwise(op, (F,), F, count)
        assert run_on_arm(kernel, {"in0": x, "out0": out}, process=ArmProcess(target)) == 0
        np.testing.assert_allclose(out, function(x.astype(np.float64)), rtol=4e-7)


@pytest.mark.parametrize(
    ("target", "kernel", "name"),
    [
        # Tiles of 6 rows by 4 vectors; groups of 6 rows by 4 columns.
        (DOTS, mixed(48, 64, 640, "bf16", "bf16", has_columns=False), "bfdot"),
        (DOTS, bytes_product(48, 64, 640), "sdot"),
        (DOTS, bytes_product(6, 128, 640), "sdot"),
    ],
)
def test_a_step_has_one_instruction_for_each_of_24_vectors_of_sums(
    target: str, kernel: Kernel, name: str
) -> None:
    asm = stage_text(built(kernel, target), "asm")
    loops = [part for part in asm.split("\n.L") if part.count(f"\t{name}\t") == 24]
    assert loops
    for loop in loops:
        label = loop.partition(":")[0]
        inside = loop[: loop.index(f".L{label}\n")]
        assert len(set(re.findall(rf"\t{name}\t(\w+)\.", inside))) == 24
        assert "[sp" not in inside


@pytest.mark.parametrize(
    ("kernel", "name", "count"),
    [
        # Four steps of tiles of 6 rows by 2 vectors; groups of 2 or 6 rows by 4 columns.
        (mixed(48, 64, 640, "bf16", "bf16", has_columns=False), "bfdot", 48),
        (FEW_ROWS, "bfdot", 8),
        (bytes_product(48, 64, 640), "sdot", 48),
        (bytes_product(6, 128, 640), "sdot", 24),
        (wide(48, 64, 640), "fm(?:la|ad)", 48),
    ],
)
def test_sve_multiplies_in_registers_of_32_bytes(kernel: Kernel, name: str, count: int) -> None:
    asm = stage_text(built(kernel, SVE), "asm")
    loops = [part for part in asm.split("\n.L") if len(re.findall(rf"\t{name}\tz", part)) == count]
    assert loops
    for loop in loops:
        label = loop.partition(":")[0]
        inside = loop[: loop.index(f".L{label}\n")]
        assert not re.search(r"\[sp|\bv\d+\.", inside)


def test_squares_and_lanes_are_permuted_by_instructions_of_whole_vectors() -> None:
    for kernel, names in ((wide(48, 64, 640), {"zip1", "zip2"}), (FEW_ROWS, {"uzp1", "uzp2"})):
        asm = stage_text(built(kernel, SVE), "asm").partition(".range:")[2]
        assert names <= set(re.findall(r"\t(\w+)\tz", asm))
        assert not re.search(r"str\tz\d+, \[sp", asm)


@needs_arm()
@pytest.mark.parametrize("lengths", [(16, 32), (16, 16), (32, 16)])
@pytest.mark.parametrize(
    ("kernel", "is_on_one_thread"),
    [(NEGATION, False), (ON_ONE_THREAD, True)],
    ids=["threads", "one_thread"],
)
def test_a_kernel_refuses_vectors_of_another_length(
    kernel: Kernel, lengths: tuple[int, int], *, is_on_one_thread: bool
) -> None:
    """In the thread that calls, and in each that it uses."""
    sizes = {"n": 50}
    counts = {"in0": 100_000, "out0": 100_000, "at": 50, "by": 200, "inout0": 400}
    given = {p.name: np.ones(counts[p.name], NUMPY[p.dtype]) for p in kernel.params}
    is_fine = is_on_one_thread and lengths[0] == 32
    status = run_on_arm(kernel, given, sizes, process=ArmProcess(SVE, 3, lengths))
    assert status == (0 if is_fine else OTHER_VECTORS)


@needs_arm()
def test_a_kernel_runs_with_vectors_of_its_length() -> None:
    given = {"in0": floats(100_000), "out0": np.zeros(100_000, np.float32)}
    assert run_on_arm(NEGATION, given, process=ArmProcess(SVE, 3, (32, 32))) == 0
    np.testing.assert_array_equal(given["out0"], -given["in0"])


def test_functions_that_read_the_length_are_not_compiled_for_one() -> None:
    llir = stage_text(built(NEGATION, SVE), "llir")
    defined = [line for line in llir.splitlines() if line.startswith("define")]
    assert [line.rpartition(" #")[2] for line in defined] == ["0 {", "1 {", "1 {"]
    assert "attributes #0 = { nounwind vscale_range(2,2) " in llir
    assert "attributes #1 = { nounwind " in llir
    assert re.search(r"\t(rdvl|cnt[bhwd])\t", stage_text(built(NEGATION, SVE), "asm"))
    assert "vscale" not in stage_text(built(NEGATION, DOTS), "llir")


def special_floats() -> np.ndarray:
    """Floats of all sizes: ties, overflows, results that are subnormal as bf16, NaN."""
    bits = np.random.default_rng(3).integers(0, 2**32, 4096, np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    subnormal = bits & np.uint32(0x807FFFFF)
    edges = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45], np.float32)
    return np.concatenate([part.view(np.float32) for part in (bits, ties, subnormal, edges)])


@needs_arm()
@pytest.mark.parametrize("target", TARGETS)
def test_every_float_is_rounded_to_the_nearest_bf16(target: str) -> None:
    x = special_floats()
    out = np.zeros(len(x), BF16)
    kernel = pointwise("convert", (F,), DType.BF16, len(x))
    assert run_on_arm(kernel, {"in0": x, "out0": out}, process=ArmProcess(target)) == 0
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out.astype(np.float32), x.astype(BF16).astype(np.float32))


def test_one_instruction_rounds_four_floats_to_bf16() -> None:
    kernel = pointwise("add", (DType.BF16, DType.BF16), DType.BF16, 4096)
    asm, without = (stage_text(built(kernel, target), "asm") for target in (DOTS, PLAIN))
    assert re.search(r"\tbfcvtn\t", asm)
    assert not re.search(r"\tbfcvtn?\t", without)
    assert len(asm) < len(without)


def test_a_processor_without_dot_products_has_none() -> None:
    for kernel in (
        mixed(48, 64, 640, "bf16", "bf16", has_columns=False),
        bytes_product(48, 64, 64),
    ):
        asm = stage_text(built(kernel, PLAIN), "asm")
        assert not re.search(r"\b(bf|s|us)dot\b", asm)


def test_an_instruction_that_the_emitter_does_not_know_is_named() -> None:
    facts = LlvmFacts("aarch64-unknown-linux-gnu", "generic", "+neon", bf16_dots="bfmmla")
    with pytest.raises(InternalError, match="name the instruction 'bfmmla'; the emitter knows"):
        dots_of(facts)
