"""Products of matrices in tiles: their text, and their numbers in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.product_search import shared_bytes
from codegen_svc.emitters.triton.product_tiling import product_tiling
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling, program_count
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.contractions import Contraction, find_contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.targets import GpuFacts, TargetFacts, all_targets, target_facts
from tests.support.goldens import assert_golden_file
from tests.support.product_kernels import added, batched, gated, linear, scaled, sliced, vector
from tests.support.traffic_kernels import batch_norm_relu
from tests.support.triton_cases import expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")
GPUS = [facts for facts in all_targets().values() if facts.vendor in ("cuda", "rocm")]


def tile(rows: int, columns: int, points: int, index_bits: int = 32) -> Tiling:
    return Tiling(rows, rows, columns, False, index_bits, 4, 3, kblock=points)


def mapped(rows: int, columns: int, points: int, programs: int = 0) -> Tiling:
    """A tile whose factors are loaded by tensor maps, by so many programs."""
    return replace(tile(rows, columns, points), has_maps=True, programs=programs)


def contraction(kernel: Kernel) -> Contraction:
    found = find_contraction(kernel)
    assert found is not None
    return found


CASES: list[tuple[Kernel, dict[str, int], Tiling]] = [
    (linear(32, 64, 32), {}, tile(16, 32, 16)),
    (linear(50, 70, 45, "f16"), {}, tile(16, 32, 16)),
    (linear(3, 33, 40), {}, tile(16, 16, 32)),
    (linear(300, 20, 20, "f16"), {}, tile(16, 16, 32, 64)),
    (gated(5, 40, 33), {}, tile(16, 32, 16)),
    (gated(40, 17, 64, "f16"), {}, tile(32, 32, 64)),
    (scaled(37, "f16"), {"s0": 19}, tile(16, 32, 16)),
    (scaled(32, "f16"), {"s0": 1}, tile(16, 16, 16, 64)),
    (sliced(3, 20, 40, 24), {}, tile(16, 32, 16)),
    (sliced(2, 5, 32, 32, "f16"), {}, tile(16, 16, 32, 64)),
    (vector(40, 24), {}, tile(16, 32, 16)),
    (vector(64, 64), {}, tile(16, 16, 32)),
    (batched(2, 3, 20, 24, 32), {}, tile(16, 32, 16)),
    (linear(50, 72, 48), {}, mapped(16, 32, 16)),
    (linear(40, 24, 40, "f16"), {}, mapped(16, 32, 16, programs=2)),
    (gated(36, 40, 48, "f16"), {}, mapped(16, 16, 32, programs=3)),
    (added(5, 40, 33), {}, tile(16, 32, 16)),
]


ROUNDING = {DType.BF16: 2**-8, DType.F16: 2**-11, DType.F32: 2**-19}


def test_products_in_tiles_equal_the_loop_interpreter() -> None:
    buffers = [random_buffers(kernel, sizes) for kernel, sizes, _ in CASES]
    for given in buffers:
        if "in5" in given:  # a divisor is far from 0
            given["in1"] = np.abs(given["in1"]) + 1
    launches = [
        interpreter_case(kernel, given, sizes, tiling)
        for (kernel, sizes, tiling), given in zip(CASES, buffers, strict=True)
    ]
    results = run_interpreted(launches)
    for (kernel, sizes, _), given, result in zip(CASES, buffers, results, strict=True):
        assert not isinstance(result, str), result
        reference = expected(kernel, given, sizes)["out0"].astype(np.float64)
        got = result[-1].astype(np.float64)
        # The sums differ in order, and so at most by one rounding to 16 bits.
        allowed = ROUNDING[kernel.params[-1].dtype] * np.maximum(np.abs(reference), 1)
        assert (np.abs(got - reference) <= 2 * allowed).all(), kernel.name


@pytest.mark.parametrize("rows", [1, 16, 40])
def test_products_in_tiles_are_as_exact_as_eager(rows: int) -> None:
    """Both round sums in f32 once. Triton's interpreter truncates to bf16, so only f16 shows it."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 1000).half(), torch.randn(48, 1000).half()
    eager = torch.nn.functional.linear(x, weight)
    exact = x.double() @ weight.double().t()
    given = {
        "in0": x.flatten().numpy(),
        "in1": weight.flatten().numpy(),
        "out0": np.zeros(eager.numel(), np.float16),
    }
    kernel = linear(rows, 48, 1000, "f16")
    (result,) = run_interpreted([interpreter_case(kernel, given, {}, tile(16, 16, 128))])
    assert not isinstance(result, str), result
    ours = torch.from_numpy(result[-1]).reshape(eager.shape)
    errors = [(found.double() - exact).abs().max().item() for found in (ours, eager)]
    assert errors[0] <= 1.01 * errors[1]


def test_sums_that_are_only_added_share_an_accumulator() -> None:
    texts = [
        emit_triton(kernel, tile(16, 32, 16), scalar_rules(TARGET, kernel)).text
        for kernel in (added(5, 40, 33), gated(5, 40, 33))
    ]
    assert [text.count("tl.zeros(") for text in texts] == [1, 2]
    assert [text.count("tl.dot(") for text in texts] == [2, 2]


@pytest.mark.golden
def test_source_of_a_gated_product_equals_its_golden() -> None:
    kernel = gated(2048, 14336, 4096)
    text = emit_triton(kernel, tile(128, 128, 64), scalar_rules(TARGET, kernel)).text
    assert_golden_file(text, Path(__file__).parent / "goldens" / "gated_product.py.txt")


def test_factors_are_masked_where_points_are_past_the_end() -> None:
    """A quotient of masked elements is no zero, and would reach the sum."""
    kernel = scaled(37)
    text = emit_triton(kernel, tile(16, 32, 16), scalar_rules(TARGET, kernel)).text
    assert "bf16_4 = tl.where(kmask, bf16_4, 0.0)" in text
    assert "bf16_10 = tl.where(kcolumn_mask, bf16_10, 0.0)" in text
    whole = scaled(32)
    assert "tl.where" not in emit_triton(whole, tile(16, 16, 16), scalar_rules(TARGET, whole)).text


def test_a_program_computes_a_tile_of_results() -> None:
    assert program_count(linear(50, 70, 45), tile(16, 32, 16)).as_int() == 4 * 3
    assert str(program_count(scaled(32), tile(16, 32, 16))) == "2*((s0 + 15)//16)"
    assert program_count(sliced(3, 50, 70, 45), tile(16, 32, 16)).as_int() == 3 * 4 * 3


@pytest.mark.sweep
@pytest.mark.parametrize("target", GPUS, ids=lambda facts: facts.name)
@pytest.mark.parametrize(
    "rows", [16, 100, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (2, 64, 4096))]
)
def test_no_tile_needs_more_shared_memory_than_the_chip_has(rows: int, target: TargetFacts) -> None:
    gpu = target.section(GpuFacts)
    for kernel in (linear(rows, 4096, 4096), gated(rows, 14336, 4096)):
        found, level = contraction(kernel), 0
        while tiling := product_tiling(kernel, found, target, 32, level):
            assert shared_bytes(found, tiling) <= gpu.max_shared_bytes
            assert tiling.num_warps * gpu.warp_size <= gpu.max_threads_per_block
            level += 1
        assert level > 3


def test_many_rows_have_tiles_by_estimated_times_on_the_chip() -> None:
    def first(rows: int, columns: int, summed: int, target: str) -> tuple[int, ...]:
        kernel = linear(rows, columns, summed)
        facts = target_facts(target)
        tiling = product_tiling(kernel, contraction(kernel), facts, 32, is_aligned=True)
        assert tiling is not None
        return tiling.xblock, tiling.rblock, tiling.kblock, tiling.num_warps, tiling.num_stages

    assert first(4096, 4096, 4096, "cuda:sm_90a") == (128, 256, 64, 8, 4)
    # Tiles as large would leave most multiprocessors idle.
    x, r, *_ = first(256, 1024, 4096, "cuda:sm_90a")
    assert 256 // x * (1024 // r) >= 128
    # More shared memory holds more stages.
    assert first(4096, 4096, 4096, "rocm:gfx950")[4] > first(4096, 4096, 4096, "rocm:gfx942")[4]


def test_tiles_for_buffers_at_odd_addresses_leave_registers_for_single_loads() -> None:
    kernel = linear(1000, 4096, 1024)
    tiling = product_tiling(kernel, contraction(kernel), TARGET, 32)
    assert tiling is not None
    threads = 32 * tiling.num_warps
    assert (tiling.xblock + tiling.rblock) * tiling.kblock <= 64 * threads
    assert tiling.xblock * tiling.rblock <= 64 * threads


def test_of_equal_estimates_the_tile_has_more_stages_and_warps_by_what_follows() -> None:
    def first(kernel: Kernel) -> tuple[int, ...]:
        tiling = product_tiling(kernel, contraction(kernel), TARGET, 32, is_aligned=True)
        assert tiling is not None
        return tiling.xblock, tiling.rblock, tiling.kblock, tiling.num_warps, tiling.num_stages

    assert first(linear(512, 4096, 4096)) == (128, 128, 64, 4, 5)
    text = print_kernel(linear(512, 4096, 4096)).replace("= %6", "= %7")
    exponential = text.replace("%6: bf16 = convert %5", "%6: f32 = exp %5\n  %7: bf16 = convert %6")
    assert first(parse_kernel(exponential)) == (128, 128, 64, 8, 5)


def test_plain_matrices_are_loaded_by_tensor_maps() -> None:
    kernel = linear(4096, 4096, 512)
    tiling = product_tiling(kernel, contraction(kernel), TARGET, 32, is_aligned=True)
    assert tiling is not None
    assert (tiling.has_maps, tiling.programs) == (True, 132)
    assert program_count(kernel, tiling).as_int() == 132
    source = emit_triton(kernel, tiling, scalar_rules(TARGET, kernel))
    text = source.text
    assert ("in1_map", "tensordesc<bf16[256,64]>") in source.signature
    assert [(m.param, m.shape, m.strides) for m in source.maps] == [
        ("in0", (4096, 512), (512,)),
        ("in1", (4096, 512), (512,)),
    ]
    assert "in1_map.load([roffset, koffset]).T" in text
    assert "tl.load" not in text


@pytest.mark.parametrize(
    ("kernel", "target"),
    [
        (linear(4096, 4096, 500), "cuda:sm_90a"),  # rows of 1,000 bytes
        (scaled(32), "cuda:sm_90a"),  # a factor is a quotient
        (linear(4096, 4096, 512), "cuda:sm_80"),
        (linear(64, 4096, 512), "cuda:sm_90a"),
    ],
)
def test_other_factors_and_chips_have_no_tensor_maps(kernel: Kernel, target: str) -> None:
    facts = target_facts(target)
    tiling = product_tiling(kernel, contraction(kernel), facts, 32, is_aligned=True)
    assert tiling is not None
    assert not tiling.has_maps


def test_few_rows_have_narrow_tiles_that_are_long_along_the_sums() -> None:
    for kernel, side, warps in ((linear(8, 4096, 4096), 16, 2), (gated(8, 4096, 4096), 32, 4)):
        tiling = product_tiling(kernel, contraction(kernel), TARGET, 32)
        assert tiling is not None
        assert (tiling.xblock, tiling.rblock, tiling.kblock) == (16, side, 256)
        assert (tiling.num_warps, tiling.num_stages) == (warps, 4)


def test_slices_have_wide_tiles_with_a_program_for_each_multiprocessor() -> None:
    kernel = sliced(4, 64, 2048, 1024)
    tiling = product_tiling(kernel, contraction(kernel), TARGET, 32)
    assert tiling is not None
    assert (tiling.xblock, tiling.rblock, tiling.kblock) == (64, 64, 128)
    assert program_count(kernel, tiling).as_int() == 128


def test_a_kernel_that_is_no_product_has_no_tiles_of_products() -> None:
    kernel = batch_norm_relu()
    with pytest.raises(KernelRejectedError, match="is no product of matrices"):
        emit_triton(kernel, tile(16, 16, 16), scalar_rules(TARGET, kernel))
