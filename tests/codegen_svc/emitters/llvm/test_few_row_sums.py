"""Products in tiles that have few rows, or a varying number of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from codegen_svc.emitters.llvm.tiles import FewRows, tiled_product
from kernelfarm.ir.loop_ir import Kernel
from tests.support.compiled_kernels import built, dots, run, run_targets, stage_text, unless_it_runs
from tests.support.product_kernels import mixed, wide

PAIRS = "cpu:x86-64-v4-bf16-amd"
DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.float16}
RUNS = [*run_targets(), pytest.param(PAIRS, marks=unless_it_runs(PAIRS))]


COLUMNS, SUMMED = 67, 512


def check(kernel: Kernel, target: str, rows: int, dtype: str, sizes: dict[str, int]) -> None:
    """Results are those of float64, and the same with five threads."""
    draw = np.random.default_rng(rows).standard_normal
    x, w = (draw((n, SUMMED)).astype(DTYPES[dtype]) for n in (rows, COLUMNS))
    found = []
    for threads in (1, 5):
        out = np.full(rows * COLUMNS, np.nan, np.float32)
        given = {"in0": x.reshape(-1), "in1": w.reshape(-1), "out0": out}
        assert run(kernel, given, sizes, threads=threads, target=target) == 0
        found.append(out.reshape(rows, COLUMNS))
    np.testing.assert_array_equal(*found)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(found[0], exact, rtol=1e-5, atol=1e-4)


def few_rows(kernel: Kernel, target: str) -> FewRows:
    found = tiled_product(kernel, 256 if target.endswith("v3") else 512, dots(target))
    assert found is not None
    assert found.few_rows is not None
    return found.few_rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", RUNS)
def test_each_number_of_rows_has_the_right_results(target: str, dtype: str) -> None:
    """Few rows, the first number that is not few, and rows in several groups of units."""
    kernel = mixed("s0", COLUMNS, SUMMED, dtype, dtype, has_columns=False)
    most = few_rows(kernel, target).most
    for rows in (0, *range(1, most + 2), 49):
        check(kernel, target, rows, dtype, {"s0": rows})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", RUNS)
def test_rows_that_are_known_to_be_few_need_no_panel(target: str, dtype: str) -> None:
    rows = 16 if dtype != "f32" and not target.endswith("v3") else 9
    kernel = mixed(rows, COLUMNS, SUMMED, dtype, dtype, has_columns=False)
    if dtype != "f32" and target.endswith("v3"):
        assert tiled_product(kernel, 256) is None  # rows of 16 bits are sums in vectors
        return
    assert few_rows(kernel, target).most >= rows
    assert "panel" not in stage_text(built(kernel, target), "llir_opt")
    check(kernel, target, rows, dtype, {})


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4", PAIRS])
def test_sums_of_few_rows_stay_in_registers_and_ask_for_the_next_columns(target: str) -> None:
    dtype, name = ("bf16", "vdpbf16ps") if target == PAIRS else ("f32", "vfmadd")
    kernel = mixed("s0", 128, 640, dtype, dtype, has_columns=False)
    form = few_rows(kernel, target)
    asm = stage_text(built(kernel, target), "asm")
    sums = form.rows * form.columns
    loops = [part for part in asm.split("\n.L") if part.count(name) == sums]
    (loop,) = [part for part in loops if part.count("prefetch") == form.columns]
    assert "(%rsp)" not in loop[: loop.index("\tj")]


def test_few_rows_need_many_whole_vectors_of_adjacent_terms() -> None:
    def form(kernel: Kernel) -> FewRows | None:
        found = tiled_product(kernel, 512)
        assert found is not None
        return found.few_rows

    assert form(wide("s0", 128, 128)) == form(wide(16, 128, 128)) == FewRows(16, 4, 4)
    assert form(wide(17, 128, 128)) is None
    assert form(wide("s0", 128, 129)) is None
    assert form(wide("s0", 128, 112)) is None  # too few terms
    assert form(wide("s0", 128, "s1")) is None
    assert form(wide("s0", 128, 128, has_columns=True)) is None


@pytest.mark.parametrize(("summed", "has_form"), [(512, True), (480, False), (528, False)])
def test_few_rows_of_pairs_need_twice_as_many_terms(summed: int, *, has_form: bool) -> None:
    kernel = mixed("s0", 128, summed, "bf16", "bf16", has_columns=False)
    found = tiled_product(kernel, 512, dots(PAIRS))
    assert found is not None
    assert (found.few_rows is not None) == has_form
