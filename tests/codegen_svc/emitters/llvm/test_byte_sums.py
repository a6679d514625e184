"""Products of 8-bit integers in tiles: exact at all edges, by four products an instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from codegen_svc.emitters.llvm.tiles import (
    BLOCK_GROUPS,
    GROUP_ROWS,
    FewRows,
    TiledProduct,
    tiled_product,
)
from kernelfarm.ir.loop_ir import Kernel
from tests.support.byte_products import (
    batched_bytes_product,
    byte_factors,
    bytes_product,
    exact_product,
)
from tests.support.compiled_kernels import built, dots, run, run_targets, stage_text, unless_it_runs

BYTES = "cpu:x86-64-v4-bf16-amd"


def runs_bytes(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that multiply bytes by fours, if this processor does."""
    for mark in unless_it_runs(BYTES):
        test = mark(test)
    return test


def check(
    kernel: Kernel,
    sizes: tuple[int, int, int],
    *,
    has_columns: bool = False,
    target: str = BYTES,
    symbols: dict[str, int] | None = None,
) -> None:
    """Results are exact, with one thread and with several."""
    rows, columns, summed = sizes
    x, w = byte_factors(rows, columns, summed, has_columns=has_columns)
    for threads in (1, 5):
        out = np.full(rows * columns, 7, np.int32)
        given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
        assert run(kernel, given, symbols or {}, threads=threads, target=target) == 0
        expected = exact_product(x, w, has_columns=has_columns)
        np.testing.assert_array_equal(out.reshape(rows, columns), expected)


def tiled(kernel: Kernel) -> TiledProduct:
    found = tiled_product(kernel, 512, dots(BYTES))
    assert found is not None
    assert found.has_bytes
    return found


EDGES = [
    # Terms that fill a lane, a square, a panel, and one, two or three more.
    *((1, 64, 66), (3, 70, 1), (17, 65, 67), (50, 33, 130), (49, 130, 64)),
    (GROUP_ROWS * BLOCK_GROUPS + 1, 64, 3073),
    # Few rows without a panel.
    *((1, 70, 128), (2, 70, 64), (6, 70, 640), (24, 64, 192)),
]


@runs_bytes
@pytest.mark.parametrize("has_columns", [False, True])
@pytest.mark.parametrize("sizes", EDGES)
def test_products_of_bytes_are_exact(sizes: tuple[int, int, int], *, has_columns: bool) -> None:
    kernel = bytes_product(*sizes, has_columns=has_columns)
    tiled(kernel)
    check(kernel, sizes, has_columns=has_columns)


@runs_bytes
@pytest.mark.parametrize("summed", [129, 256])
def test_one_binary_serves_every_number_of_rows(summed: int) -> None:
    """Few rows, the first number that is not few, and rows of several groups."""
    kernel = bytes_product("s0", 70, summed)
    for rows in (0, 1, 5, 24, 25, 50):
        check(kernel, (rows, 70, summed), symbols={"s0": rows})


@pytest.mark.parametrize("target", run_targets())
def test_targets_without_the_instruction_are_exact_too(target: str) -> None:
    assert tiled_product(bytes_product(17, 65, 67), 512) is None
    check(bytes_product(17, 65, 67), (17, 65, 67), target=target)
    check(bytes_product(1, 65, 67), (1, 65, 67), target=target)


@runs_bytes
def test_sums_beyond_32_bits_wrap() -> None:
    summed = 2**17 + 64
    kernel = bytes_product(2, 64, summed)
    x, w = np.full((2, summed), -128, np.int8), np.full((64, summed), -128, np.int8)
    out = np.zeros(128, np.int32)
    assert run(kernel, {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}, target=BYTES) == 0
    assert set(out.tolist()) == {(summed << 14) - 2**32}


@pytest.mark.parametrize("columns", [16, 64])
def test_sums_of_bytes_stay_in_registers(columns: int) -> None:
    """A step has one instruction for each vector of a tile, and stores nothing."""
    kernel = bytes_product(48, columns, 64)
    tile = tiled(kernel)
    asm = stage_text(built(kernel, BYTES), "asm")
    loops = [part for part in asm.split("\n.L") if part.count("vpdpbusd") >= 24]
    assert tile.height * tile.vectors == 24
    assert {part.count("vpdpbusd") for part in loops} == {24 * tile.steps_together}
    assert all("(%rsp)" not in part[: part.index("\tj")] for part in loops)


@pytest.mark.parametrize(("rows", "sums"), [(1, 4), (2, 16), (4, 16), (6, 24)])
def test_few_rows_of_bytes_need_no_panel(rows: int, sums: int) -> None:
    kernel = bytes_product(rows, 128, 640)
    form = tiled(kernel).few_rows
    assert form is not None
    assert form.rows * form.columns == sums
    assert "panel" not in stage_text(built(kernel, BYTES), "llir_opt")
    asm = stage_text(built(kernel, BYTES), "asm")
    loops = [part for part in asm.split("\n.L") if part.count("vpdpbusd") == sums]
    assert any(part.count("prefetch") == form.columns for part in loops)


def test_few_rows_need_whole_vectors_of_adjacent_terms() -> None:
    assert tiled(bytes_product("s0", 128, 64)).few_rows == FewRows(24, 4, 4)
    assert tiled(bytes_product("s0", 128, 65)).few_rows is None
    assert tiled(bytes_product(25, 128, 64)).few_rows is None
    assert tiled(bytes_product(8, 128, 64, has_columns=True)).few_rows is None


def test_bytes_of_a_row_that_are_apart_are_not_in_tiles() -> None:
    kernel = bytes_product(17, 64, 64)
    turned = bytes_product(17, 64, 64, has_rows=True)
    assert tiled_product(kernel, 512, dots(BYTES)) is not None
    assert tiled_product(turned, 512, dots(BYTES)) is None


def test_all_terms_are_in_one_panel_if_they_fit() -> None:
    assert tiled(bytes_product(48, 64, 3072)).has_one_slice
    assert tiled(bytes_product(48, 64, 3073)).slice_terms == 1536


@runs_bytes
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_each_batch_has_a_product_of_its_own(rows: int) -> None:
    batches, columns, summed = 3, 66, 70
    kernel = batched_bytes_product(batches, rows, columns, summed)
    tiled(kernel)
    factors = [byte_factors(rows, columns + number, summed) for number in range(batches)]
    x = np.stack([left for left, _ in factors])
    w = np.stack([right[:columns] for _, right in factors])
    out = np.full(batches * rows * columns, 7, np.int32)
    given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
    assert run(kernel, given, threads=2, target=BYTES) == 0
    exact = np.stack([exact_product(left, right) for left, right in zip(x, w, strict=True)])
    np.testing.assert_array_equal(out.reshape(exact.shape), exact)
