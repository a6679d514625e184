"""Guided reductions as Triton source: run in Triton's interpreter, built for every vendor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen_svc.backends.ascend.backend import BACKEND as ASCEND
from codegen_svc.backends.contract import Backend
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.dtypes import DType
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.interpret import numpy_dtype
from kernelfarm.ir.loop_ir import GUIDES, Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.linalg_cpu import TOOLS, run_linalg
from tests.support.loop_kernels.guided import LAYOUTS, statistic
from tests.support.third_party import need
from tests.support.triton_cases import Array, assert_same, expected, interpreter_case
from tests.support.triton_interpreter import run_interpreted

ROWS = 6
TILINGS = {
    "persistent": Tiling(4, 4, 256, True, 32),
    "looped": Tiling(2, 2, 4, False, 32),
    "looped_64": Tiling(1, 1, 16, False, 64),
    "held": Tiling(1, 1, 8, False, 32, pieces=8),
    "grouped": Tiling(2, 2, 16, False, 32, lane_groups=4),
}
# Nothing, one point, part of a block, some blocks.
SHAPES = [
    *((DType.F32, width, form) for width in (1, 21) for form in TILINGS),
    *((DType.F32, width, form) for width in (0, 64) for form in ("looped", "grouped")),
    *((DType.F64, 21, form) for form in ("looped", "grouped")),
]
CASES = [(op, layout, *shape) for op in GUIDES for layout in LAYOUTS for shape in SHAPES]
LARGE_MEAN = (np.random.default_rng(1).normal(size=ROWS * 500) + 1e4).astype(np.float32)


def drawn(layout: str, width: int, dtype: DType) -> Array:
    """Numbers around 100, in longer rows with NaN and infinities."""
    random = np.random.default_rng(width)
    count = ROWS * width * (3 if layout == "split" else 1)
    x = (random.normal(size=count) * 3 + 100).astype(numpy_dtype(dtype))
    if width > 3:
        x[random.integers(0, count, 2)] = np.nan
        x[random.integers(0, count, 9)] = -np.inf
        x[random.integers(0, count, 1)] = np.inf
        x[:width] = -np.inf
    return x


def buffers_of(x: Array) -> dict[str, Array]:
    return {"in0": x, "out0": np.full(ROWS, 7, x.dtype), "out1": np.full(ROWS, 7, x.dtype)}


def lone(op: str) -> Kernel:
    return parse_kernel(
        "kernel lone\nparam in in0: f32[90]\nparam out out0: f32[1]\nreduce r0 in 90\n"
        f"  %0: f32 = load in0[r0]\n  %1: f32 = {op} %0\n  store out0[0] = %1\n"
    )


LONE = [
    (op, tiling)
    for op in GUIDES
    for tiling in (
        Tiling(1, 1, 128, True, 32),
        Tiling(1, 1, 16, False, 32),
        Tiling(1, 1, 16, False, 32, lane_groups=4),
    )
]
LONE_BUFFERS = {"in0": LARGE_MEAN[:90], "out0": np.zeros(1, np.float32)}


@pytest.fixture(scope="module")
def results() -> list[Any]:
    """CASES, then LONE, then rows with a large mean, in one run because each run starts slowly."""
    launches = [
        interpreter_case(
            statistic(op, dtype.value, layout),
            buffers_of(drawn(layout, width, dtype)),
            {"rows": ROWS, "width": width},
            TILINGS[form],
        )
        for op, layout, dtype, width, form in CASES
    ]
    launches += [interpreter_case(lone(op), LONE_BUFFERS, {}, tiling) for op, tiling in LONE]
    sizes = {"rows": ROWS, "width": 500}
    large = statistic("welford_m2", "f32"), buffers_of(LARGE_MEAN), sizes
    launches.append(interpreter_case(*large, TILINGS["looped"]))
    return run_interpreted(launches)


@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(map(str, c)) for c in CASES])
def test_source_gives_what_two_passes_mean(number: int, results: list[Any]) -> None:
    op, layout, dtype, width, _ = CASES[number]
    assert not isinstance(results[number], str), results[number]
    two = statistic(op, dtype.value, layout, passes=2)
    sizes = {"rows": ROWS, "width": width}
    reference = expected(two, buffers_of(drawn(layout, width, dtype)), sizes)
    for position, name in ((1, "out0"), (2, "out1")):
        assert_same(dtype, results[number][position], reference[name], 4)


def test_lanes_keep_the_digits_of_a_small_variance_about_a_large_mean(results: list[Any]) -> None:
    exact = LARGE_MEAN.astype(np.float64).reshape(ROWS, 500).var(axis=1) * 500
    np.testing.assert_allclose(results[-1][2], exact, rtol=1e-6)


def test_a_guide_need_not_be_a_statement(results: list[Any]) -> None:
    for (op, _), got in zip(LONE, results[len(CASES) :], strict=False):
        reference = expected(lone(op), LONE_BUFFERS, {})["out0"]
        assert_same(DType.F32, got[1], reference, 4)


def text(variant: BuiltKernel, name: str) -> str:
    return next(s.content.decode() for s in variant.stages if s.name == name)


@pytest.mark.parametrize("op", GUIDES)
@pytest.mark.parametrize(
    ("backend", "target"),
    [(CUDA, "cuda:sm_90a"), (ROCM, "rocm:gfx942"), (ASCEND, "ascend:910b")],
    ids=["cuda", "rocm", "ascend"],
)
def test_rows_of_varying_length_build_for_every_vendor(
    op: str, backend: Backend, target: str
) -> None:
    for variant in backend.build(statistic(op, "f32"), target_facts(target)):
        assert not variant.launch.spills
        # One loop, unless a variant holds the row.
        form = dict(variant.launch.extras).get("form", "looped")
        loops = len(re.findall(r"for roffset in", text(variant, "triton")))
        assert loops == (0 if form in {"persistent", "held"} else 1)


def softmax(passes: int) -> Kernel:
    body = {
        1: "  %2: f32 = softmax_sum %0\n  %3: f32 = sub %0, %1\n  %4: f32 = exp %3\n",
        2: "  %2: f32 = sub %0, %1\n  %3: f32 = exp %2\n  %4: f32 = sum %3\n",
    }[passes]
    above, below = (4, 2) if passes == 1 else (3, 4)
    return parse_kernel(
        "kernel softmax\nparam in in0: f32[4096*100]\nparam out out0: f32[4096*100]\n"
        "for d0 in 100\nreduce r0 in 4096\n  %0: f32 = load in0[4096*d0 + r0]\n"
        f"  %1: f32 = amax %0\n{body}  %5: f32 = div %{above}, %{below}\n"
        "  store out0[4096*d0 + r0] = %5\n"
    )


def test_one_pass_over_a_held_row_computes_no_more_exponentials_than_two() -> None:
    counts = []
    for passes in (1, 2):
        variant = CUDA.build(softmax(passes), target_facts("cuda:sm_90a"))[0]
        assert dict(variant.launch.extras)["form"] == "persistent"
        counts.append(text(variant, "ptx").count("ex2.approx"))
    assert counts[0] == counts[1] > 0


@pytest.mark.third_party
@pytest.mark.parametrize("op", GUIDES)
def test_ascends_linalg_computes_it_on_the_cpu(op: str, tmp_path: Path) -> None:
    need(*TOOLS)
    kernel = statistic(op, "f32")
    buffers, sizes = buffers_of(drawn("row", 5000, DType.F32)), {"rows": ROWS, "width": 5000}
    reference = expected(kernel, buffers, sizes)
    arrays = [array.copy() for array in buffers.values()]
    run_linalg(ASCEND.build(kernel, target_facts("ascend:910b"))[0], arrays, sizes, tmp_path)
    for got, name in ((arrays[1], "out0"), (arrays[2], "out1")):
        assert_same(DType.F32, got, reference[name], 8)


def test_lanes_take_the_exponential_without_arithmetic_for_subnormal_results() -> None:
    kernel = statistic("softmax_sum", "f32")
    variants = CUDA.build(kernel, target_facts("cuda:sm_90a"))
    looped = [v for v in variants if dict(v.launch.extras)["form"] == "looped"]
    assert looped
    assert all("ex2.approx.ftz.f32" in text(variant, "ptx") for variant in looped)
