"""Costly values of the lane alone are computed once for a range of units, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.llvm.lane_constants import MAX_BYTES, MIN_ROWS, lane_constants
from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Compute, Kernel
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import NUMPY, run

CHANNELS = 96


def normalization(rows: int | str = 100, channels: int = CHANNELS, dtype: str = "f32") -> Kernel:
    """out0 = (in0 - in1) / sqrt(in2), with the channels last."""
    sizes = f"size {rows} from 0\n" if isinstance(rows, str) else ""
    points = f"{channels}*{rows}" if isinstance(rows, str) else f"{channels * rows}"
    return parse_kernel(
        f"kernel normalize\n{sizes}"
        f"param in in0: {dtype}[{points}]\nparam in in1: {dtype}[{channels}]\n"
        f"param in in2: {dtype}[{channels}]\nparam out out0: {dtype}[{points}]\n"
        f"for d0 in {rows}\nfor d1 in {channels}\n"
        f"  %0: {dtype} = load in0[{channels}*d0 + d1]\n  %1: f32 = convert %0\n"
        f"  %2: {dtype} = load in1[d1]\n  %3: f32 = convert %2\n  %4: f32 = sub %1, %3\n"
        f"  %5: {dtype} = load in2[d1]\n  %6: f32 = convert %5\n  %7: f32 = rsqrt %6\n"
        f"  %8: f32 = mul %4, %7\n  %9: {dtype} = convert %8\n"
        f"  store out0[{channels}*d0 + d1] = %9\n"
    )


def chosen(kernel: Kernel) -> list[str]:
    """The operations of the values that are computed once."""
    found = (kernel.body[n] for n in lane_constants(kernel, kernel.outer[-1]))
    return [statement.op for statement in found if isinstance(statement, Compute)]


def test_the_root_of_each_channel_is_computed_once() -> None:
    assert chosen(normalization()) == ["rsqrt"]


def test_rows_of_varying_number_are_many() -> None:
    assert chosen(normalization("s0")) == ["rsqrt"]


def test_few_rows_are_not_worth_a_loop_before_them() -> None:
    assert chosen(normalization(MIN_ROWS - 1)) == []


def test_more_channels_than_fit_the_stack_are_computed_at_each_point() -> None:
    assert chosen(normalization(channels=MAX_BYTES // 4)) == ["rsqrt"]
    assert chosen(normalization(channels=MAX_BYTES // 4 + 1)) == []


def test_values_that_depend_on_the_row_stay_in_the_loop() -> None:
    kernel = parse_kernel(
        "kernel roots\nparam in in0: f32[9600]\nparam in in1: f32[100]\n"
        "param out out0: f32[9600]\nfor d0 in 100\nfor d1 in 96\n"
        "  %0: f32 = load in0[96*d0 + d1]\n  %1: f32 = sqrt %0\n"
        "  %2: f32 = load in1[d0]\n  %3: f32 = exp %2\n  %4: f32 = div %1, %3\n"
        "  store out0[96*d0 + d1] = %4\n"
    )
    assert chosen(kernel) == []


def test_what_a_kernel_overwrites_is_read_where_it_is_used() -> None:
    """The row that is written first may be the one that all rows read."""
    kernel = parse_kernel(
        "kernel overwrite\nparam inout io0: f32[9600]\nfor d0 in 100\nfor d1 in 96\n"
        "  %0: f32 = load io0[96*d0 + d1]\n  %1: f32 = load io0[d1]\n  %2: f32 = exp %1\n"
        "  %3: f32 = add %0, %2\n  store io0[96*d0 + d1] = %3\n"
    )
    assert chosen(kernel) == []


def test_a_gathered_value_stays_in_the_loop_because_its_index_is_checked() -> None:
    kernel = parse_kernel(
        "kernel gather\nparam in in0: i64[96]\nparam in in1: f32[7]\nparam out out0: f32[9600]\n"
        "for d0 in 100\nfor d1 in 96\n  %0: i64 = load in0[d1]\n  place = indirect %0 in 7\n"
        "  %2: f32 = load in1[place]\n  %3: f32 = exp %2\n  store out0[96*d0 + d1] = %3\n"
    )
    assert chosen(kernel) == []


@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("rows", "channels"), [(64, 1), (100, 7), (300, 96), (65, 1000), (64, MAX_BYTES // 4)]
)
def test_results_are_those_of_the_interpreter(
    rows: int, channels: int, threads: int, dtype: DType
) -> None:
    _compare(normalization(rows, channels, str(dtype.value)), rows, channels, threads, {})


@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
def test_one_binary_serves_any_number_of_rows(rows: int) -> None:
    _compare(normalization("s0"), rows, CHANNELS, 2, {"s0": rows})


def _compare(kernel: Kernel, rows: int, channels: int, threads: int, sizes: dict[str, int]) -> None:
    assert chosen(kernel) == ["rsqrt"]
    random = np.random.default_rng(0)
    kind = NUMPY[kernel.params[0].dtype]
    buffers = {
        "in0": random.standard_normal(rows * channels).astype(kind),
        "in1": random.standard_normal(channels).astype(kind),
        "in2": random.uniform(0.5, 2, channels).astype(kind),
        "out0": np.zeros(rows * channels, kind),
    }
    expected = {name: array.copy() for name, array in buffers.items()}
    run_kernel(kernel, expected, sizes)
    assert run(kernel, buffers, sizes, threads=threads) == 0
    np.testing.assert_array_equal(buffers["out0"], expected["out0"], strict=True)
