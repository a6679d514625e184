"""Products in register tiles: their numbers at all edges, and which kernels are in tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from codegen_svc.emitters.llvm.tiles import BLOCK_GROUPS, GROUP_ROWS, tiled_product
from kernelfarm.ir.loop_ir import Kernel, Load
from tests.support.compiled_kernels import built as built_kernel
from tests.support.compiled_kernels import dots, run, stage_text, unless_it_runs
from tests.support.product_kernels import linear, mixed, wide, wide_batched

PAIRS = "cpu:x86-64-v4-bf16-amd"


def runs_pairs(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that multiply pairs of bf16, if this processor does."""
    for mark in unless_it_runs(PAIRS):
        test = mark(test)
    return test


EDGES = [
    # Rows of whole tiles, groups and blocks, and one more or less; terms of vectors and slices.
    (2, 64, 1, False),
    (47, 65, 33, False),
    (GROUP_ROWS * BLOCK_GROUPS + 1, 64, 16, False),
    (13, 130, 385, True),
    (9, 130, 400, False),
]


def operands(rows: int, columns: int, summed: int, *, has_columns: bool) -> list[np.ndarray]:
    draw = np.random.default_rng(rows * columns + summed).standard_normal
    weight = (summed, columns) if has_columns else (columns, summed)
    shapes = ((rows, summed), weight, (columns,), (rows, columns))
    return [draw(shape).astype(np.float32) for shape in shapes]


def layer(arrays: list[np.ndarray], dtype: torch.dtype, *, has_columns: bool) -> torch.Tensor:
    x, weight, bias, residual = (torch.from_numpy(array).to(dtype) for array in arrays)
    product = x @ (weight if has_columns else weight.t())
    return torch.nn.functional.gelu(product + bias) + residual


def result(
    kernel: Kernel, arrays: list[np.ndarray], sizes: dict[str, int], threads: int
) -> np.ndarray:
    out = np.full(arrays[3].size, np.nan, np.float32)
    given = {f"in{n}": array.reshape(-1) for n, array in enumerate(arrays)}
    assert run(kernel, {**given, "out0": out}, sizes, threads=threads) == 0
    return out.reshape(arrays[3].shape)


def check(
    kernel: Kernel, arrays: list[np.ndarray], sizes: dict[str, int], *, has_columns: bool
) -> None:
    """The error against float64 is at most 4 times eager's; threads change nothing."""
    ours = result(kernel, arrays, sizes, 1)
    np.testing.assert_array_equal(ours, result(kernel, arrays, sizes, 5))
    exact = layer(arrays, torch.float64, has_columns=has_columns).numpy()
    eager = layer(arrays, torch.float32, has_columns=has_columns).numpy()
    smallest = np.finfo(np.float32).eps * np.abs(exact).max(initial=0)
    errors = [np.abs(found - exact).max(initial=0) for found in (ours, eager)]
    assert errors[0] <= 4 * max(errors[1], smallest)


@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize(("rows", "columns", "summed", "has_columns"), EDGES)
def test_a_product_in_tiles_is_as_exact_as_eager(
    rows: int, columns: int, summed: int, has_columns: bool
) -> None:
    kernel = wide(rows, columns, summed, has_columns=has_columns)
    arrays = operands(rows, columns, summed, has_columns=has_columns)
    check(kernel, arrays, {}, has_columns=has_columns)


@pytest.mark.usefixtures("each_cpu_target")
def test_one_binary_serves_every_number_of_rows_and_terms() -> None:
    kernel = wide("s0", 70, "s1")
    for rows, summed in ((0, 3), (1, 20), (5, 0), (6, 16), (50, 500)):
        arrays = operands(rows, 70, summed, has_columns=False)
        check(kernel, arrays, {"s0": rows, "s1": summed}, has_columns=False)


@pytest.mark.usefixtures("each_cpu_target")
def test_each_batch_has_a_product_of_its_own() -> None:
    batches, rows, columns, summed = 3, 50, 66, 40
    draw = np.random.default_rng(0).standard_normal
    x = draw((batches, rows, summed)).astype(np.float32)
    weight = draw((batches, columns, summed)).astype(np.float32)
    out = np.zeros(batches * rows * columns, ml_dtypes.bfloat16)
    kernel = wide_batched(batches, rows, columns, summed)
    given = {"in0": x.reshape(-1), "in1": weight.reshape(-1), "out0": out}
    assert run(kernel, given, threads=2) == 0
    exact = x.astype(np.float64) @ weight.astype(np.float64).swapaxes(1, 2)
    got = out.astype(np.float64).reshape(exact.shape)
    np.testing.assert_allclose(got, exact, rtol=2.0**-8, atol=1e-4)


NARROW = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


@pytest.mark.sweep
@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("rows", "columns", "summed"), [(17, 65, 37), (25, 8, 400), (50, 33, 16)])
def test_factors_of_16_bits_are_converted_where_they_are_read(
    dtype: str, rows: int, columns: int, summed: int
) -> None:
    """Also if only one of them is narrow, and if the columns of the right one are adjacent."""
    for has_columns in (False, True):
        for left in (dtype, "f32"):
            kernel = mixed(rows, columns, summed, left, dtype, has_columns=has_columns)
            assert tiled_product(kernel, 512) is not None
            draw = np.random.default_rng(rows).standard_normal
            x = draw((rows, summed)).astype(NARROW.get(left, np.float32))
            w = draw((summed, columns) if has_columns else (columns, summed)).astype(NARROW[dtype])
            out = np.full(rows * columns, np.nan, np.float32)
            assert run(kernel, {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}) == 0
            wide_w = w.astype(np.float64)
            exact = x.astype(np.float64) @ (wide_w if has_columns else wide_w.T)
            np.testing.assert_allclose(out.reshape(exact.shape), exact, rtol=1e-5, atol=1e-4)


def narrow_product(
    rows: int, columns: int, summed: int, *, has_columns: bool
) -> tuple[Kernel, np.ndarray, np.ndarray]:
    """A product of bf16, and its factors."""
    kernel = mixed(rows, columns, summed, "bf16", "bf16", has_columns=has_columns)
    draw = np.random.default_rng(rows * columns + summed).standard_normal
    weight = (summed, columns) if has_columns else (columns, summed)
    x, w = (draw(shape).astype(ml_dtypes.bfloat16) for shape in ((rows, summed), weight))
    return kernel, x, w


def product_of_pairs(kernel: Kernel, x: np.ndarray, w: np.ndarray, columns: int) -> np.ndarray:
    """The result of a kernel for a processor that multiplies pairs of bf16."""
    out = np.full(x.shape[0] * columns, np.nan, np.float32)
    given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
    assert run(kernel, given, target=PAIRS) == 0
    return out.reshape(x.shape[0], columns)


PAIR_EDGES = [
    # Terms: one, an odd number, squares and one more, slices and one more.
    *(
        (17, 65, 1),
        (50, 33, 37),
        (25, 8, 64),
        (100, 130, 65),
        (GROUP_ROWS * BLOCK_GROUPS + 1, 64, 769),
    ),
]


@runs_pairs
@pytest.mark.parametrize("has_columns", [False, True])
@pytest.mark.parametrize(("rows", "columns", "summed"), PAIR_EDGES)
def test_products_of_pairs_are_as_exact_as_sums_of_f32(
    rows: int, columns: int, summed: int, has_columns: bool
) -> None:
    kernel, x, w = narrow_product(rows, columns, summed, has_columns=has_columns)
    got = product_of_pairs(kernel, x, w, columns)
    wide_x, wide_w = (torch.from_numpy(a.astype(np.float64)) for a in (x, w))
    wide_w = wide_w if has_columns else wide_w.t()
    exact = (wide_x @ wide_w).numpy()
    eager = (wide_x.float() @ wide_w.float()).numpy()
    errors = [np.abs(found - exact).max() for found in (got, eager)]
    assert errors[0] <= 4 * max(errors[1], np.finfo(np.float32).eps * np.abs(exact).max())


@runs_pairs
@pytest.mark.parametrize("has_columns", [False, True])
def test_a_pair_without_a_second_term_reads_nothing_behind_it(has_columns: bool) -> None:
    """The elements behind the last ones of a row are those of the next row, here not a number."""
    rows, columns, summed = 30, 33, 65
    kernel, x, w = narrow_product(rows, columns, summed, has_columns=has_columns)
    expected = product_of_pairs(kernel, x, w, columns)
    x[1], expected[1] = np.nan, np.nan
    if has_columns:
        w[:, 2], expected[:, 2] = np.nan, np.nan
    else:
        w[2], expected[:, 2] = np.nan, np.nan
    np.testing.assert_array_equal(product_of_pairs(kernel, x, w, columns), expected)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4", PAIRS])
@pytest.mark.parametrize("columns", [16, 32, 48, 64])
def test_sums_of_a_tile_stay_in_registers(target: str, columns: int) -> None:
    """A step has one instruction for each vector of a tile, and stores nothing."""
    kernel, name = wide(24, columns, 64), "vfmadd231ps"
    if target == PAIRS:
        kernel, name = mixed(24, columns, 64, "bf16", "bf16", has_columns=False), "vdpbf16ps"
    tile = tiled_product(kernel, 256 if target.endswith("v3") else 512)
    assert tile is not None
    asm = stage_text(built_kernel(kernel, target), "asm")
    loops = [part for part in asm.split("\n.L") if part.count(name) >= 12]
    sums = 12 if target.endswith("v3") else 24
    assert tile.height * tile.vectors == sums
    assert {part.count(name) for part in loops} == {sums * tile.steps_together}
    assert all("(%rsp)" not in part[: part.index("\tj")] for part in loops)


@pytest.mark.parametrize("has_columns", [False, True])
@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4", PAIRS])
def test_each_step_of_the_first_tiles_asks_for_a_line_of_the_next_panel(
    target: str, has_columns: bool
) -> None:
    """The panel has no more lines than that, so later tiles ask for none."""
    dtype, name = ("bf16", "vdpbf16ps") if target == PAIRS else ("f32", "vfmadd231ps")
    kernel = mixed(60, 128, 64, dtype, dtype, has_columns=has_columns)
    asm = stage_text(built_kernel(kernel, target), "asm")
    loops = [part for part in asm.split("\n.L") if part.count(name) >= 12]
    steps = 4 if target.endswith("v3") else 2
    assert [part.count("prefetch") for part in loops] == [steps, 0]


def test_results_of_bf16_are_rounded_by_one_instruction_behind_each_tile() -> None:
    """Their function needs registers of its own: constants leave those of the sums alone."""
    asm = stage_text(built_kernel(linear(24, 64, 64), PAIRS), "asm")
    results = asm[asm.index(".results:") :]
    results = results[: results.index(".Lfunc_end")]
    assert "vcvtneps2bf16" in results
    assert "vdpbf16ps" not in results


@pytest.mark.parametrize(
    ("left", "right", "is_paired"),
    [("bf16", "bf16", True), ("f16", "f16", False), ("f32", "bf16", False)],
)
def test_pairs_are_of_bf16_in_both_factors(left: str, right: str, is_paired: bool) -> None:
    kernel = mixed(24, 64, 64, left, right, has_columns=True)
    found = tiled_product(kernel, 512, dots(PAIRS))
    assert found is not None
    assert found.is_paired is is_paired
    without = tiled_product(kernel, 512)
    assert without is not None
    assert not without.is_paired


@pytest.mark.parametrize(
    ("columns", "vectors"),
    [(8, 1), (16, 1), (24, 2), (49, 4), (65, 1), (40, 3), (160, 2), (197, 2), (768, 4)],
)
def test_tiles_are_as_wide_as_takes_the_least_time(columns: int, vectors: int) -> None:
    found = tiled_product(wide(24, columns, 64), 512)
    assert found is not None
    assert (found.vectors, found.height) == (vectors, 24 // vectors)


def test_other_kernels_are_not_in_tiles() -> None:
    assert tiled_product(wide(12, 64, 64), 512) is not None
    assert tiled_product(wide(12, 7, 64), 512) is None
    assert tiled_product(wide(12, 7, 64), 256) is not None
    assert tiled_product(linear(12, 64, 64), 512) is None
    assert tiled_product(linear(16, 64, 64), 512) is not None
    kernel = wide(12, 64, 64)
    (load, *others) = kernel.body
    assert isinstance(load, Load)
    halved = replace(load, index=load.index // 2)
    assert tiled_product(replace(kernel, body=(halved, *others)), 512) is None


def test_units_are_groups_of_rows_of_each_column_of_tiles() -> None:
    found = tiled_product(wide(100, 130, 64), 512)
    assert found is not None
    assert [axis.extent.as_int() for axis in found.units] == [3, 3]
    assert found.block_rows == 3 * GROUP_ROWS
