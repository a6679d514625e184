"""Weighted sums of windows in register tiles: depthwise convolutions of images channels last."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from codegen_svc.emitters.llvm.window_tiles import TileRun, tiled_windows
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.targets import target_facts
from tests.support.compiled_kernels import (
    built,
    run,
    run_targets,
    stage_text,
    unless_it_runs,
)
from tests.support.window_kernels import (
    DepthwiseCase,
    depthwise_kernel,
    largest_error,
    operands_of_case,
)

PAIRS = "cpu:x86-64-v4-bf16-amd"
CASES = {
    "3x3": DepthwiseCase(2, (9, 14), 24, (3, 3), padding=(1, 1)),
    "5x5, stride 2": DepthwiseCase(1, (15, 15), 40, (5, 5), stride=2, padding=(2, 2)),
    "7x7, residual": DepthwiseCase(1, (14, 14), 16, (7, 7), padding=(3, 3), after="residual"),
    "7x7 on 7 pixels": DepthwiseCase(2, (7, 7), 32, (7, 7), padding=(3, 3), after="hardswish"),
    "1x7": DepthwiseCase(2, (5, 20), 8, (1, 7), padding=(0, 3)),
    "7x1": DepthwiseCase(2, (20, 5), 8, (7, 1), padding=(3, 0)),
    "no padding": DepthwiseCase(1, (8, 30), 48, (3, 3)),
    "more padding than needed": DepthwiseCase(1, (4, 4), 8, (3, 3), padding=(3, 3)),
    "one pixel": DepthwiseCase(3, (1, 1), 8, (3, 3), padding=(1, 1)),
    "stride 2, no padding": DepthwiseCase(1, (12, 13), 8, (3, 3), stride=2),
    "dilation": DepthwiseCase(1, (12, 12), 16, (3, 3), padding=(2, 2), dilation=2),
    "72 channels": DepthwiseCase(1, (8, 56), 72, (3, 3), padding=(1, 1), after="sigmoid"),
    "one channel": DepthwiseCase(1, (6, 6), 1, (3, 3), padding=(1, 1)),
    "27 channels": DepthwiseCase(2, (6, 10), 27, (3, 3), padding=(1, 1), after="residual"),
    "100 channels": DepthwiseCase(1, (5, 5), 100, (5, 5), padding=(2, 2)),
    "a wide row": DepthwiseCase(1, (2, 200), 16, (3, 3), padding=(1, 1)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("name", CASES)
def test_errors_are_those_of_rounding(name: str, target: str) -> None:
    assert largest_error(CASES[name], target=target, threads=(1, 2)) <= 1


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["5x5, stride 2", "7x7, residual", "27 channels"])
def test_sums_of_16_bits_are_in_f32(name: str, dtype: str, target: str) -> None:
    assert largest_error(replace(CASES[name], dtype=dtype), target=target) <= 1


@pytest.mark.parametrize("target", [pytest.param(PAIRS, marks=unless_it_runs(PAIRS))])
@pytest.mark.parametrize("name", ["5x5, stride 2", "7x7, residual", "27 channels"])
def test_sums_of_bf16_are_rounded_by_an_instruction(name: str, target: str) -> None:
    case = replace(CASES[name], dtype="bf16")
    assert largest_error(case, target=target, threads=(1, 2)) <= 1


def drawn(seed: int) -> DepthwiseCase:
    draw = random.Random(seed)
    window = draw.choice([(3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (2, 4)])
    padding = tuple(draw.randint(0, 3) for _ in window)
    least = [max(1, size - 2 * each) for size, each in zip(window, padding, strict=True)]
    return DepthwiseCase(
        draw.randint(1, 3),
        (draw.randint(least[0], 9), draw.randint(least[1], 20)),
        draw.randint(1, 100),
        window,
        stride=draw.choice([1, 2]),
        padding=(padding[0], padding[1]),
        dtype=draw.choice(["f32", "f32", "bf16", "f16"]),
        after=draw.choice(["", "residual", "hardswish", "sigmoid"]),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("seed", range(30))
def test_any_convolution_is_computed(seed: int, target: str) -> None:
    case = drawn(seed)
    assert largest_error(case, target=target, threads=(1, 2)) <= 1, case


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64"])
def test_code_multiplies_vectors_without_masks(target: str) -> None:
    case = DepthwiseCase(1, (14, 14), 72, (3, 3), padding=(1, 1))
    variant = built(depthwise_kernel(case), target)
    text = stage_text(variant, "llir_opt").partition(".range(")[2].partition("\n}")[0]
    lanes = target_facts(target).processor.vector_bytes // 4  # type: ignore[union-attr]
    assert f"@llvm.fma.v{lanes}f32" in text
    assert "@llvm.masked" not in text
    assert "phi <" in text


@pytest.mark.parametrize(
    ("target", "dtype", "is_rounded"),
    [
        (PAIRS, "bf16", True),
        (PAIRS, "f32", False),
        (PAIRS, "f16", False),
        ("cpu:x86-64-v4", "bf16", False),
    ],
)
def test_processors_with_products_of_bf16_round_to_it(
    target: str, dtype: str, *, is_rounded: bool
) -> None:
    case = DepthwiseCase(1, (14, 14), 72, (3, 3), padding=(1, 1), dtype=dtype)
    asm = stage_text(built(depthwise_kernel(case), target), "asm")
    assert ("vcvtneps2bf16" in asm) == is_rounded


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_results_of_whole_vectors_have_no_masks(target: str) -> None:
    """72 channels: AVX-512 has a block of four vectors' channels, and eight in a shorter one."""
    case = DepthwiseCase(1, (14, 14), 72, (3, 3), padding=(1, 1), after="hardswish")
    text = stage_text(built(depthwise_kernel(case), target), "llir_opt")
    assert text.count(".results") > 1
    assert "@llvm.masked" not in text


def test_a_vector_of_64_bytes_is_a_block() -> None:
    kernel = depthwise_kernel(DepthwiseCase(1, (14, 14), 96, (3, 3), padding=(1, 1), dtype="bf16"))
    blocks = {bits: tiled_windows(kernel, bits) for bits in (256, 512)}
    assert {bits: found and found.block_channels for bits, found in blocks.items()} == {
        256: 32,
        512: 16,
    }


def test_tiles_at_the_ends_of_a_row_have_code_of_their_own() -> None:
    case = DepthwiseCase(1, (56, 56), 96, (7, 7), padding=(3, 3))
    found = tiled_windows(depthwise_kernel(case), 256)
    assert found is not None
    (runs,) = found.runs.values()
    assert runs == (TileRun(0, 8, 1), TileRun(8, 8, 5), TileRun(48, 8, 1))


def test_rows_without_padding_are_one_loop() -> None:
    case = DepthwiseCase(1, (9, 66), 8, (3, 3))
    found = tiled_windows(depthwise_kernel(case), 512)
    assert found is not None
    (runs,) = found.runs.values()
    assert len(runs) == 1
    assert runs[0].pixels * runs[0].count == 64


def test_channels_that_fill_no_vector_have_shorter_ones() -> None:
    case = DepthwiseCase(1, (9, 9), 29, (3, 3))
    found = tiled_windows(depthwise_kernel(case), 256)
    assert found is not None
    assert [(piece.first, piece.lanes) for piece in found.pieces] == [(24, 4), (28, 1)]


def changed(old: str, new: str) -> Kernel:
    text = print_kernel(depthwise_kernel(CASES["3x3"]))
    assert old in text
    return parse_kernel(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= sum %", "= amax %"),
        ("load in1[d3 + 72*r0 + 24*r1]", "load in1[9*d3 + 3*r0 + r1]"),
        ("f32 = 0.0", "f32 = 1.0"),
        ("lt %1, ", "ne %1, "),
    ],
)
def test_other_kernels_are_loops_over_their_axes(old: str, new: str) -> None:
    assert tiled_windows(depthwise_kernel(CASES["3x3"]), 256) is not None
    assert tiled_windows(changed(old, new), 256) is None


def test_a_row_whose_sums_fit_no_stack_is_a_loop() -> None:
    case = DepthwiseCase(1, (3, 3000), 16, (3, 3), padding=(1, 1))
    assert tiled_windows(depthwise_kernel(case), 256) is None


@pytest.mark.parametrize("target", run_targets())
def test_weights_outside_an_image_change_nothing(target: str) -> None:
    """A corner meets four weights of nine; the others may be no numbers."""
    case = DepthwiseCase(1, (1, 1), 8, (3, 3), padding=(1, 1))
    buffers = operands_of_case(case)
    weight = buffers["in1"].reshape(3, 3, 8)
    middle = weight[1, 1].copy()
    weight[:] = np.nan
    weight[1, 1] = middle
    assert run(depthwise_kernel(case), buffers, target=target) == 0
    np.testing.assert_allclose(buffers["out0"], buffers["in0"] * middle + buffers["in2"], rtol=1e-6)
