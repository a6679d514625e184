"""Rows that are partly in shared memory: which kernels have them, and what their text computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codegen_svc.emitters.triton.split_tiling import split_tilings
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import GpuFacts, target_facts
from tests.support.loop_kernels import emitter_shapes
from tests.support.triton_cases import (
    Array,
    assert_same,
    expected,
    interpreter_case,
    random_buffers,
)
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")
F16, BF16, F32 = DType.F16, DType.BF16, DType.F32


def shapes_of(kernel: Kernel, width: int, *even: str) -> list[tuple[int, int, int, int]]:
    """The warps, pieces, pieces in shared memory and loads ahead of each tiling."""
    found = split_tilings(kernel, TARGET.section(GpuFacts), 32, width, frozenset(even))
    return [(t.num_warps, t.pieces, t.shared_pieces, t.loads_ahead) for t in found]


def split(rblock: int, pieces: int, shared: int, loads_ahead: int = 0) -> Tiling:
    return Tiling(
        1, 1, rblock, False, 32, pieces=pieces, shared_pieces=shared, loads_ahead=loads_ahead
    )


def moments(width: str, rows: str = "3", sizes: str = "") -> Kernel:
    """(x - mean) / deviation, weighted; the variance by Welford's algorithm."""
    return parse_kernel(
        f"kernel fused_norm_71aa\n{sizes}"
        f"param in in0: f16[{rows}*{width}]\nparam in in1: f16[{width}]\n"
        f"param out out0: f16[{rows}*{width}]\nfor d0 in {rows}\nreduce r0 in {width}\n"
        f"  %0: f16 = load in0[r0 + {width}*d0]\n  %1: f32 = convert %0\n  %2: f32 = sum %1\n"
        f"  %3: i64 = index {width}\n  %4: f32 = convert %3\n  %5: f32 = div %2, %4\n"
        "  %6: f32 = sub %1, %5\n  %7: f32 = welford_m2 %1\n  %8: f32 = div %7, %4\n"
        "  %9: f32 = 1e-05\n  %10: f32 = add %8, %9\n  %11: f32 = rsqrt %10\n"
        "  %12: f32 = mul %6, %11\n  %13: f16 = load in1[r0]\n  %14: f32 = convert %13\n"
        "  %15: f32 = mul %12, %14\n  %16: f16 = convert %15\n"
        f"  store out0[r0 + {width}*d0] = %16\n"
    )


def several_sums(width: int) -> Kernel:
    """Moments with no guide before them, and sums that equal their guide; the same of exp(x)."""
    return parse_kernel(
        f"kernel fused_sums_71aa\nparam in in0: f16[3*{width}]\nparam out out0: f32[3*{width}]\n"
        f"for d0 in 3\nreduce r0 in {width}\n  %0: f16 = load in0[r0 + {width}*d0]\n"
        "  %1: f32 = convert %0\n  %2: f32 = welford_m2 %1\n  %3: f32 = sum %1\n"
        "  %4: f32 = exp %1\n  %5: f32 = sum %4\n  %6: f32 = welford_m2 %4\n  %7: f32 = sum %4\n"
        "  %8: f32 = sub %1, %3\n  %9: f32 = mul %8, %2\n  %10: f32 = add %9, %5\n"
        "  %11: f32 = sub %10, %6\n  %12: f32 = mul %11, %7\n"
        f"  store out0[r0 + {width}*d0] = %12\n"
    )


def moments_of_three_rows(width: int) -> Kernel:
    return parse_kernel(
        "kernel fused_norm_71bb\n"
        + "".join(f"param in in{n}: f16[3*{width}]\n" for n in range(3))
        + f"param in in3: f16[{width}]\nparam out out0: f32[3*{width}]\n"
        f"for d0 in 3\nreduce r0 in {width}\n"
        + "".join(
            f"  %{2 * n}: f16 = load in{n}[r0 + {width}*d0]\n"
            f"  %{2 * n + 1}: f32 = convert %{2 * n}\n"
            for n in range(3)
        )
        + "  %6: f32 = add %1, %3\n  %7: f32 = add %6, %5\n  %8: f16 = load in3[r0]\n"
        "  %9: f32 = convert %8\n  %10: f32 = add %7, %9\n  %11: f32 = sum %10\n"
        "  %12: f32 = welford_m2 %10\n  %13: f32 = sub %10, %11\n  %14: f32 = mul %13, %12\n"
        f"  store out0[r0 + {width}*d0] = %14\n"
    )


VARYING = moments("s1", "s0", "size s0 from 2\nsize s1 from 2\n")


@pytest.mark.parametrize(
    ("width", "shape"),
    [(50304, (8, 25, 12, 4)), (65536, (8, 32, 16, 4)), (131072, (16, 32, 16, 4))],
)
def test_half_of_a_long_row_is_in_shared_memory(width: int, shape: tuple[int, ...]) -> None:
    first, more, fewer_ahead = shapes_of(emitter_shapes.layer_norm_silu(F16, 512, width), width)
    assert first == shape
    warps, pieces, shared, _ = shape
    assert more == (warps, pieces, shared + 4, 4)
    assert fewer_ahead == (warps, pieces, shared + 4, 2)


def test_a_kernel_without_weights_loads_nothing_ahead() -> None:
    kernel = emitter_shapes.softmax(512, 65536, BF16)
    assert shapes_of(kernel, 65536) == [(8, 32, 16, 0), (8, 32, 20, 0)]


def test_two_rows_share_the_memory_of_one() -> None:
    kernel = emitter_shapes.rms_norm_residual(512, 32768)
    assert shapes_of(kernel, 32768)[0] == (8, 16, 8, 4)


def test_rows_of_varying_length_are_split_if_their_sizes_are_even() -> None:
    assert shapes_of(VARYING, 65536, "s0", "s1")[0] == (8, 32, 16, 4)
    assert shapes_of(VARYING, 65536, "s0") == []


@pytest.mark.parametrize("width", [16416, 17408, 18432])
def test_the_first_piece_in_registers_is_full(width: int) -> None:
    """Moments take the first points of lanes, and loads of weights there have no mask."""
    found = shapes_of(moments_of_three_rows(width), width)
    assert found == [(8, 9, 4, 4), (8, 9, 4, 2)]


@pytest.mark.parametrize(
    ("kernel", "width"),
    [
        (emitter_shapes.softmax(512, 32768, F16), 32768),
        (emitter_shapes.softmax(512, 262144, F16), 262144),
        (emitter_shapes.softmax(512, 65535, F16), 65535),
        (emitter_shapes.softmax(512, 50304, F32), 50304),
        (emitter_shapes.reduce_rows("sum", 512, 65536, F16, F16), 65536),
    ],
    ids=["short", "too-long", "rows-at-odd-addresses", "f32", "read-once"],
)
def test_other_rows_are_not_split(kernel: Kernel, width: int) -> None:
    assert shapes_of(kernel, width) == []


def test_chips_without_facts_about_them_have_no_such_rows() -> None:
    gpu = replace(TARGET.section(GpuFacts), split_row_bytes=0)
    kernel = emitter_shapes.softmax(512, 65536, F16)
    assert split_tilings(kernel, gpu, 32, 65536, frozenset()) == ()


_STATIC = {
    "softmax": (emitter_shapes.softmax(3, 64, F16), split(8, 8, 4)),
    "softmax_with_a_part": (emitter_shapes.softmax(3, 101, F16), split(8, 13, 8)),
    "layer_norm_silu": (emitter_shapes.layer_norm_silu(F16, 3, 64), split(8, 8, 4, 4)),
    "layer_norm_silu_with_a_part": (
        emitter_shapes.layer_norm_silu(F16, 3, 99),
        split(8, 13, 4, 2),
    ),
    "two_rows": (emitter_shapes.rms_norm_residual(3, 75), split(8, 10, 4, 4)),
    "log_sum_exp": (emitter_shapes.log_sum_exp(3, 61, F16), split(8, 8, 4)),
    "moments": (moments("64"), split(8, 8, 4, 3)),
    "moments_with_a_part": (moments("61"), split(8, 8, 4)),
    "several_sums": (several_sums(61), split(8, 8, 4)),
    "moments_of_three_rows": (moments_of_three_rows(67), split(8, 9, 4, 1)),
}
# Four pieces of 8 elements are in registers, up to eight in shared memory.
_LENGTHS = (33, 40, 41, 63, 64, 65, 95, 96)


def run(cases: dict[str, tuple[Kernel, Tiling, dict[str, int], dict[str, Array]]]) -> Any:
    launches = [interpreter_case(k, b, sizes, tiling) for k, tiling, sizes, b in cases.values()]
    return dict(zip(cases, run_interpreted(launches), strict=True))


@pytest.fixture(scope="module")
def results() -> Any:
    cases = {
        name: (kernel, tiling, {}, random_buffers(kernel, {}))
        for name, (kernel, tiling) in _STATIC.items()
    }
    for length in _LENGTHS:
        sizes = {"s0": 2, "s1": length}
        for name, kernel in (
            ("moments", VARYING),
            ("softmax", emitter_shapes.dynamic_softmax(F16)),
        ):
            cases[f"{name} of {length}"] = (
                kernel, split(8, 12, 8, 4 if kernel is VARYING else 0), sizes,
                random_buffers(kernel, sizes),
            )  # fmt: skip
    return cases, run(cases)


@pytest.mark.parametrize(
    "name", [*_STATIC, *(f"{name} of {n}" for n in _LENGTHS for name in ("moments", "softmax"))]
)
def test_split_rows_equal_the_loop_interpreter(name: str, results: Any) -> None:
    cases, found = results
    kernel, _, sizes, buffers = cases[name]
    assert not isinstance(found[name], str), found[name]
    reference = expected(kernel, buffers, sizes)
    for param, got in zip(kernel.params, found[name], strict=True):
        assert_same(param.dtype, got, reference[param.name])


def test_moments_keep_their_digits_whatever_a_lane_holds_first() -> None:
    """First points that are far from the rest, a large mean, and rows of one number."""
    kernel, width = moments("64"), 64
    buffers = random_buffers(kernel, {})
    rows = np.random.default_rng(0).standard_normal((3, width))
    rows[0, ::8] += 30000.0
    rows[1] = 2000.0 + rows[1]
    rows[2] = 7.0
    buffers["in0"] = rows.astype(np.float16).reshape(-1)
    buffers["in1"] = np.ones(width, np.float16)
    found = run({"k": (kernel, split(8, 8, 4), {}, buffers)})["k"]
    exact = buffers["in0"].astype(np.float64).reshape(3, width)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found[2].reshape(3, width), exact, rtol=1e-3, atol=1e-3)


def test_minus_infinities_and_nan_stay_in_their_rows() -> None:
    kernel = emitter_shapes.dynamic_softmax(F16)
    sizes = {"s0": 4, "s1": 45}
    buffers = random_buffers(kernel, sizes)
    rows = buffers["in0"].reshape(4, 45)
    rows[0, 40:] = -np.inf
    rows[1, 44] = np.nan
    rows[2, :44] = -np.inf
    (_, got) = run({"k": (kernel, split(8, 12, 8), sizes, buffers)})["k"]
    assert_same(F16, got, expected(kernel, buffers, sizes)["out0"])
