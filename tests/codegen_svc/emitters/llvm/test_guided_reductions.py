"""Compiled guided reductions: against the interpreter and float64, with odd numbers."""

from __future__ import annotations

import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import GUIDES, Kernel
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import NUMPY, run
from tests.support.loop_kernels.guided import LAYOUTS, statistic

pytestmark = pytest.mark.usefixtures("each_cpu_target")

Array = np.ndarray
ROWS = 37
# Shorter than a vector, than a block, and of several blocks, the last one not full.
WIDTHS = (0, 1, 3, 100, 20000)


def points_of(layout: str, width: int) -> int:
    return 3 * width if layout == "split" else width


def drawn(layout: str, width: int, dtype: DType, *, is_odd: bool) -> Array:
    """Random numbers around 100; with NaN, infinities and a row of nothing but -inf if `is_odd`."""
    random = np.random.default_rng(width)
    x = (random.normal(size=ROWS * points_of(layout, width)) * 3 + 100).astype(NUMPY[dtype])
    if is_odd and x.size:
        x[random.integers(0, x.size, 4)] = np.nan
        x[random.integers(0, x.size, 9)] = -np.inf
        x[random.integers(0, x.size, 4)] = np.inf
        x[random.integers(0, x.size, 1)] = np.finfo(x.dtype).max
        x[:width] = -np.inf
        x[1::ROWS] = -np.inf
    return x


def outputs(kernel: Kernel, x: Array, width: int, *, threads: int = 0) -> tuple[Array, Array]:
    """out0 and out1; interpreted if `threads` is 0."""
    buffers = {
        "in0": x.copy(),
        "out0": np.full(ROWS, 7, x.dtype),
        "out1": np.full(ROWS, 7, x.dtype),
    }
    sizes = {"rows": ROWS, "width": width}
    if threads:
        assert run(kernel, buffers, sizes, threads=threads) == 0
    else:
        with np.errstate(all="ignore"):
            run_kernel(kernel, buffers, sizes)
    return buffers["out0"], buffers["out1"]


@pytest.mark.sweep
@pytest.mark.parametrize("is_odd", [False, True], ids=["plain", "odd"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", GUIDES)
def test_one_pass_gives_what_two_passes_mean(
    op: str, layout: str, dtype: DType, is_odd: bool
) -> None:
    kernel = statistic(op, dtype.value, layout)
    for width in WIDTHS:
        x = drawn(layout, width, dtype, is_odd=is_odd)
        ours = outputs(kernel, x, width, threads=2)
        meant = outputs(statistic(op, dtype.value, layout, passes=2), x, width)
        for mine, reference in zip(ours, meant, strict=True):
            # 60,000 sums of f32, which lanes of columns keep in f64.
            rtol = 1e-5 if dtype is DType.F32 else 1e-12
            np.testing.assert_allclose(mine, reference, rtol=rtol, err_msg=f"width {width}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_small_variance_about_a_large_mean_keeps_its_digits(layout: str) -> None:
    # Squares of 10,000 leave f32 no digit for a variance of 1: mean(x^2) - mean(x)^2 is off by 8.
    random = np.random.default_rng(3)
    x = (random.normal(size=ROWS * points_of(layout, 30000)) + 1e4).astype(np.float32)
    _, exact = outputs(statistic("welford_m2", "f64", layout), x.astype(np.float64), 30000)
    _, ours = outputs(statistic("welford_m2", "f32", layout), x, 30000, threads=2)
    np.testing.assert_allclose(ours, exact, rtol=2e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", GUIDES)
def test_one_pass_is_as_exact_as_two(op: str, layout: str) -> None:
    """Against float64, with a margin for luck: both round as often.

    Both add a block of 4,096 points one after the other in each lane of a vector, then the blocks.
    A lane that holds a large term loses of each small one what is below its last place, so the
    error grows with the points of a lane: 512 of 8 lanes, 256 of 16.
    """
    random = np.random.default_rng(4)
    width = 30000
    x = (random.normal(size=ROWS * points_of(layout, width)) * 5 + 30).astype(np.float32)
    _, exact = outputs(statistic(op, "f64", layout), x.astype(np.float64), width)
    errors = []
    for passes in (1, 2):
        _, ours = outputs(statistic(op, "f32", layout, passes=passes), x, width, threads=1)
        errors.append(np.abs(ours / exact - 1).max())
    assert errors[0] <= 1.5 * errors[1] + np.finfo(np.float32).eps, errors


def test_a_guide_need_not_be_a_statement() -> None:
    x = np.random.default_rng(5).normal(size=50000).astype(np.float32)
    reference = {"welford_m2": x.var(dtype=np.float64) * x.size}
    reference["softmax_sum"] = np.exp(x.astype(np.float64) - x.max()).sum()
    for op, value in reference.items():
        kernel = parse_kernel(
            "kernel lone\nparam in in0: f32[50000]\nparam out out0: f32[1]\nreduce r0 in 50000\n"
            f"  %0: f32 = load in0[r0]\n  %1: f32 = {op} %0\n  store out0[0] = %1\n"
        )
        out = np.zeros(1, np.float32)
        assert run(kernel, {"in0": x, "out0": out}) == 0
        np.testing.assert_allclose(out, value, rtol=1e-6)


def test_an_in_place_softmax_reads_a_row_before_it_writes_it() -> None:
    kernel = parse_kernel(
        "kernel softmax\nparam inout inout0: f32[60000]\nfor d0 in 3\nreduce r0 in 20000\n"
        "  %0: f32 = load inout0[20000*d0 + r0]\n  %1: f32 = amax %0\n"
        "  %2: f32 = softmax_sum %0\n  %3: f32 = sub %0, %1\n  %4: f32 = exp %3\n"
        "  %5: f32 = div %4, %2\n  store inout0[20000*d0 + r0] = %5\n"
    )
    x = np.random.default_rng(6).normal(size=(3, 20000)).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(axis=1, keepdims=True)
    buffer = x.reshape(-1).copy()
    assert run(kernel, {"inout0": buffer}) == 0
    np.testing.assert_allclose(buffer.reshape(3, -1), exact, rtol=2e-6)


def test_values_stored_beside_a_guided_reduction_are_right() -> None:
    """A block is looped over twice, its elements are stored once."""
    kernel = parse_kernel(
        "kernel doubled\nparam in in0: f32[30000]\nparam out out0: f32[30000]\n"
        "param out out1: f32[1]\nreduce r0 in 30000\n  %0: f32 = load in0[r0]\n"
        "  %1: f32 = add %0, %0\n  %2: f32 = welford_m2 %1\n  store out0[r0] = %1\n"
        "  store out1[0] = %2\n"
    )
    x = np.random.default_rng(7).normal(size=30000).astype(np.float32)
    buffers = {"in0": x, "out0": np.zeros_like(x), "out1": np.zeros(1, np.float32)}
    assert run(kernel, buffers) == 0
    np.testing.assert_array_equal(buffers["out0"], x + x)
    np.testing.assert_allclose(buffers["out1"], 4 * x.size * x.var(dtype=np.float64), rtol=1e-6)
