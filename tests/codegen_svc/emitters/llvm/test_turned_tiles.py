"""Accesses along the rows of a tile move in vectors that are transposed in registers."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.llvm.lane_axis import MIN_TURNED
from codegen_svc.emitters.llvm.schedule import schedule
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.compiled_kernels import NUMPY, built, run, stage

MEMORY = target_facts("cpu:x86-64-v4").memory
V4 = "cpu:x86-64-v4"


def turned_sum(
    rows: int | str, columns: int | str, dtype: str = "f32", *, is_stored: bool = False
) -> Kernel:
    """out0 = in0 + in1.T, row-major; if `is_stored`, out0.T = in0 + in1."""
    sizes = "".join(f"size {n} from 0\n" for n in (rows, columns) if isinstance(n, str))
    plain, turned = f"{columns}*d0 + d1", f"d0 + {rows}*d1"
    loaded, stored = (plain, turned) if is_stored else (turned, plain)
    return parse_kernel(
        f"kernel turned\n{sizes}"
        + "".join(f"param {a}: {dtype}[{rows}*{columns}]\n" for a in ("in in0", "in in1"))
        + f"param out out0: {dtype}[{rows}*{columns}]\nfor d0 in {rows}\nfor d1 in {columns}\n"
        f"  %0: {dtype} = load in0[{plain}]\n  %1: {dtype} = load in1[{loaded}]\n"
        f"  %2: {dtype} = maximum %0, %1\n  store out0[{stored}] = %2\n"
    )


def turned(kernel: Kernel) -> tuple[int, ...]:
    return schedule(kernel, MEMORY).turned


def test_loads_and_stores_along_rows_are_turned() -> None:
    assert turned(turned_sum(100, 80)) == (1,)
    assert turned(turned_sum(100, 80, is_stored=True)) == (3,)


def test_a_short_axis_has_no_squares() -> None:
    assert turned(turned_sum(MIN_TURNED - 1, 80)) == ()
    assert turned(turned_sum(80, MIN_TURNED - 1)) == ()


def test_what_is_read_and_written_keeps_its_order() -> None:
    kernel = parse_kernel(
        "kernel turn\nparam inout out0: f32[6400]\nfor d0 in 80\nfor d1 in 80\n"
        "  %0: f32 = load out0[d0 + 80*d1]\n  %1: f32 = neg %0\n  store out0[d0 + 80*d1] = %1\n"
    )
    assert turned(kernel) == ()


def test_whole_vectors_move_between_memory_and_the_tile() -> None:
    text = stage(built(turned_sum(64, 64), V4), "llir_opt").decode()
    assert "shufflevector <16 x i32>" in text and "gather" not in text


@pytest.mark.sweep
@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(
    "dtype", [DType.F32, DType.F64, DType.BF16, DType.U8], ids=lambda d: d.value
)
@pytest.mark.parametrize("shape", [(64, 128), (37, 70), (5, 12)], ids=str)
def test_every_element_arrives(shape: tuple[int, int], dtype: DType, is_stored: bool) -> None:
    _check(turned_sum(*shape, dtype.value, is_stored=is_stored), shape, dtype, is_stored)


@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 200), (64, 64), (131, 67)], ids=str)
def test_one_binary_serves_every_size(shape: tuple[int, int]) -> None:
    sizes = dict(zip(("s0", "s1"), shape, strict=True))
    _check(turned_sum("s0", "s1", is_stored=True), shape, DType.F32, True, sizes)


def _check(
    kernel: Kernel,
    shape: tuple[int, int],
    dtype: DType,
    is_stored: bool,
    sizes: dict[str, int] | None = None,
) -> None:
    generator = np.random.default_rng(0)
    plain = generator.integers(0, 100, shape).astype(NUMPY[dtype])
    other = generator.integers(0, 100, shape).astype(NUMPY[dtype])
    loaded = other if is_stored else other.T
    out = np.zeros(plain.size, NUMPY[dtype])
    buffers = {
        "in0": plain.reshape(-1),
        "in1": np.ascontiguousarray(loaded).reshape(-1),
        "out0": out,
    }
    assert run(kernel, buffers, sizes or {}) == 0
    exact = np.maximum(plain, other)
    np.testing.assert_array_equal(out, (exact.T if is_stored else exact).reshape(-1))
