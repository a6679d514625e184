"""Scans and scatters as Triton source: run in Triton's interpreter, built for every vendor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen_svc.backends.ascend.backend import BACKEND as ASCEND
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.interpret import numpy_dtype
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.prims import SCAN_OPS
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.ir_strategies import GOLDEN
from tests.support.linalg_cpu import TOOLS, linalg_of, run_linalg
from tests.support.loop_kernels.scatters import SCATTER
from tests.support.third_party import need
from tests.support.triton_cases import Array, assert_same, expected, interpreter_case
from tests.support.triton_interpreter import run_interpreted

ROWS, WIDTH = 6, 21
F32, F64, I64, I32, U8 = DType.F32, DType.F64, DType.I64, DType.I32, DType.U8
TILINGS = {
    "persistent": Tiling(4, 4, 32, True, 32),
    "looped": Tiling(2, 2, 4, False, 32),
    "looped_64": Tiling(2, 2, 8, False, 64),
}


def scan_kernel(op: str, dtype: DType) -> Kernel:
    result = "i64" if op.endswith("_index") else dtype.value
    return parse_kernel(
        f"kernel {op}\nparam in in0: {dtype.value}[{ROWS * WIDTH}]\n"
        f"param out out0: {result}[{ROWS * WIDTH}]\nfor d0 in {ROWS}\nreduce r0 in {WIDTH}\n"
        f"  %0: {dtype.value} = load in0[{WIDTH}*d0 + r0]\n  %1: {result} = scan {op} %0\n"
        f"  store out0[{WIDTH}*d0 + r0] = %1\n"
    )


def scan_input(dtype: DType) -> Array:
    random = np.random.default_rng(5)
    x = random.integers(0 if dtype is U8 else -2, 4, ROWS * WIDTH).astype(numpy_dtype(dtype))
    if dtype.is_float:
        rows = x.reshape(ROWS, WIDTH)
        rows *= 0.75
        rows[1, [2, 9]] = np.nan
        rows[2] = -np.inf
        rows[3, 7] = np.inf
    return x


SCANS = [
    (op, dtype, form)
    for op in SCAN_OPS
    for dtype in (F32, F64, I64, I32, U8)
    for form in TILINGS
    if dtype.is_float or op != "logcumsumexp"
    if form != "looped_64"
    or dtype in (F32, I64)  # the type of indices does not depend on the type of elements
]


@pytest.fixture(scope="module")
def scan_results() -> Any:
    kernels = [scan_kernel(op, dtype) for op, dtype, _ in SCANS]
    buffers = [
        {"in0": scan_input(d), "out0": np.zeros(ROWS * WIDTH, numpy_dtype(k.params[1].dtype))}
        for k, (_, d, _) in zip(kernels, SCANS, strict=True)
    ]
    launches = [
        interpreter_case(k, b, {}, TILINGS[form])
        for k, b, (_, _, form) in zip(kernels, buffers, SCANS, strict=True)
    ]
    return list(zip(kernels, buffers, run_interpreted(launches), strict=True))


@pytest.mark.parametrize("number", range(len(SCANS)), ids=["-".join(map(str, s)) for s in SCANS])
def test_a_scan_equals_the_loop_interpreter(number: int, scan_results: Any) -> None:
    kernel, buffers, result = scan_results[number]
    assert not isinstance(result, str), result
    reference = expected(kernel, buffers, {})
    assert_same(kernel.params[1].dtype, result[1], reference["out0"], 8)


def test_scans_between_reductions_equal_the_loop_interpreter() -> None:
    kernel = parse_kernel((GOLDEN / "running.kernel").read_text())
    buffers = {
        "in0": np.random.default_rng(0).normal(size=60).astype(np.float32),
        "out0": np.zeros(60, np.float32),
        "out1": np.zeros(60, np.int64),
        "out2": np.zeros(5, np.float32),
    }
    tilings = (Tiling(4, 4, 16, True, 32), Tiling(2, 2, 4, False, 32))
    launches = [interpreter_case(kernel, buffers, {"s0": 5}, tiling) for tiling in tilings]
    reference = expected(kernel, buffers, {"s0": 5})
    for result in run_interpreted(launches):
        assert not isinstance(result, str), result
        for param, got in zip(kernel.params, result, strict=True):
            if param.access is Access.WRITE:
                assert_same(param.dtype, got, reference[param.name], 4)


SCATTERS = [(mode, dtype) for mode in ("add", "min", "max") for dtype in (F32, F64, I64, I32)]


def scatter_buffers(dtype: DType, count: int) -> dict[str, Array]:
    random = np.random.default_rng(6)
    values = random.integers(-9, 9, 4 * count).astype(numpy_dtype(dtype))
    if dtype.is_float:
        values[[3, 50]] = np.nan
        values[5] = -np.nan
        values[8] = -0.0
    return {
        "at": random.integers(-100, 100, count),
        "by": values,
        "inout0": random.integers(-9, 9, 400).astype(numpy_dtype(dtype)),
    }


@pytest.fixture(scope="module")
def scatter_results() -> Any:
    count = 70
    kernels = [parse_kernel(SCATTER.format(mode=m, dtype=d.value)) for m, d in SCATTERS]
    kernels.append(parse_kernel((GOLDEN / "histogram.kernel").read_text()))
    buffers = [scatter_buffers(d, count) for _, d in SCATTERS]
    buffers.append(
        {
            "ids": np.arange(count) % 5,  # every update of one element holds one value
            "weight": np.ones(4 * count, np.float32),
            "total": np.ones(32, np.float32),
            "last": np.zeros(8, np.float32),
        }
    )
    pairs = list(zip(kernels, buffers, strict=True))
    launches = [
        interpreter_case(k, b, {"n": count}, Tiling(64, 64, 0, False, 32)) for k, b in pairs
    ]
    results = run_interpreted(launches)
    return [(k, b, r) for (k, b), r in zip(pairs, results, strict=True)]


@pytest.mark.parametrize("number", range(len(SCATTERS) + 1))
def test_a_scatter_equals_the_loop_interpreter(number: int, scatter_results: Any) -> None:
    kernel, buffers, result = scatter_results[number]
    assert not isinstance(result, str), result
    reference = expected(kernel, buffers, {"n": 70})
    for param, got in zip(kernel.params, result, strict=True):
        if param.access is not Access.READ:
            assert_same(param.dtype, got, reference[param.name])


def test_updates_without_an_atomic_operation_are_refused() -> None:
    for mode, dtype in (("mul", "f32"), ("add", "i16")):
        kernel = parse_kernel(SCATTER.format(mode=mode, dtype=dtype))
        with pytest.raises(KernelRejectedError, match=f"by {mode} to {dtype} has no atomic"):
            CUDA.build(kernel, target_facts("cuda:sm_90a"))


# The same texts take as long again for AMD; goldens and the interpreter check them by default.
@pytest.mark.parametrize(
    ("backend", "target"),
    [
        pytest.param(CUDA, "cuda:sm_90a", id="cuda"),
        pytest.param(ROCM, "rocm:gfx942", id="rocm", marks=pytest.mark.slow),
    ],
)
def test_gpus_compile_scans_and_scatters(backend: Any, target: str) -> None:
    kernels = [parse_kernel((GOLDEN / f"{n}.kernel").read_text()) for n in ("running", "histogram")]
    kernels += [scan_kernel(op, F32) for op in SCAN_OPS]
    kernels += [parse_kernel(SCATTER.format(mode=m, dtype=d.value)) for m, d in SCATTERS]
    long_rows = (
        "kernel long\nparam in in0: f32[4194304]\nparam out out0: f32[4194304]\nfor d0 in 4\n"
        "reduce r0 in 1048576\n  %0: f32 = load in0[1048576*d0 + r0]\n"
        "  %1: f32 = scan cumsum %0\n  store out0[1048576*d0 + r0] = %1\n"
    )
    kernels.append(parse_kernel(long_rows))
    built = [backend.build(kernel, target_facts(target)) for kernel in kernels]
    assert all(variants[-1].launch.spills == 0 for variants in built)
    update = built[1][0]
    assert "of several updates of one element any may be the last" in update.notes


LINALG_KERNELS = {
    **{op: scan_kernel(op, F32) for op in SCAN_OPS if op not in ("cumsum", "cumprod")},
    **{
        f"{mode}_{dtype.value}": parse_kernel(SCATTER.format(mode=mode, dtype=dtype.value))
        for mode, dtype in (("add", F32), ("max", I32), ("min", I64))
    },
}


@pytest.mark.third_party
@pytest.mark.parametrize("name", LINALG_KERNELS)
def test_linalg_of_scans_and_scatters_equals_the_loop_interpreter(
    name: str, tmp_path: Path
) -> None:
    need(*TOOLS)
    kernel = LINALG_KERNELS[name]
    sizes = {size.name: 70 for size in kernel.sizes}
    if name in SCAN_OPS:
        out = np.zeros(ROWS * WIDTH, numpy_dtype(kernel.params[1].dtype))
        buffers = {"in0": scan_input(F32), "out0": out}
    else:
        buffers = scatter_buffers(kernel.params[1].dtype, 70)
        buffers["by"] = np.nan_to_num(buffers["by"])
    reference = expected(kernel, buffers, sizes)
    arrays = {key: array.copy() for key, array in buffers.items()}
    built = ASCEND.build(kernel, target_facts("ascend:910b"))[-1]
    run_linalg(built, [arrays[p.name] for p in kernel.params], sizes, tmp_path)
    for param in kernel.params:
        if param.access is not Access.READ:
            assert_same(param.dtype, arrays[param.name], reference[param.name], 8)


def test_a_running_sum_on_ascend_names_the_library_that_it_calls() -> None:
    (built,) = ASCEND.build(scan_kernel("cumsum", F32), target_facts("ascend:910b"))
    assert built.notes == ("calls triton_cumsum of CANN's library, which was not run here",)
    assert "@triton_cumsum" in linalg_of(built)
