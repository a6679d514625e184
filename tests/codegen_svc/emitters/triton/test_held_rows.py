"""Rows held in pieces: how many threads hold them, and what loads run ahead of the stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.held_loads import loads_ahead
from codegen_svc.emitters.triton.held_tiling import HeldShape, held_shape
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import gpu_tiling
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Kernel, Load
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import GpuFacts, target_facts
from tests.support.loop_kernels import emitter_shapes

TARGET = target_facts("cuda:sm_90a")


def shape_of(kernel: Kernel, width: int) -> HeldShape | None:
    return held_shape(kernel, TARGET.section(GpuFacts), width)


def ahead_of(kernel: Kernel) -> list[str]:
    """The parameters that loads ahead read."""
    loads = (kernel.body[number] for number in loads_ahead(kernel))
    return [load.param for load in loads if isinstance(load, Load)]


def test_weights_are_loaded_ahead_of_the_stores() -> None:
    assert ahead_of(emitter_shapes.layer_norm_silu(DType.F16)) == ["in1", "in2"]


def test_nothing_is_loaded_ahead_where_the_last_loop_stores_nothing() -> None:
    kernel = parse_kernel(
        "kernel k\nparam in in0: f32[64]\nparam in in1: f32[16]\nparam out out0: f32[4]\n"
        "for d0 in 4\nreduce r0 in 16\n"
        "  %0: f32 = load in0[16*d0 + r0]\n  %1: f32 = amax %0\n  %2: f32 = sub %0, %1\n"
        "  %3: f32 = load in1[r0]\n  %4: f32 = mul %2, %3\n  %5: f32 = sum %4\n"
        "  store out0[d0] = %5\n"
    )
    assert ahead_of(kernel) == []


@pytest.mark.parametrize(
    ("load", "access"),
    [("load in1[r0] if %3 else %0", "in"), ("load in1[r0]", "inout")],
    ids=["masked", "written"],
)
def test_loads_that_depend_on_others_stay_where_they_are(load: str, access: str) -> None:
    writes = "  store in1[r0] = %5\n" if access == "inout" else ""
    kernel = parse_kernel(
        f"kernel k\nparam in in0: f32[64]\nparam {access} in1: f32[16]\nparam out out0: f32[64]\n"
        "for d0 in 4\nreduce r0 in 16\n"
        "  %0: f32 = load in0[16*d0 + r0]\n  %1: f32 = amax %0\n  %2: f32 = sub %0, %1\n"
        f"  %3: bool = gt %2, %1\n  %4: f32 = {load}\n  %5: f32 = mul %2, %4\n"
        f"  store out0[16*d0 + r0] = %5\n{writes}"
    )
    assert ahead_of(kernel) == []


@pytest.mark.parametrize(
    ("width", "threads", "pieces"), [(32768, 256, 16), (50304, 512, 13), (65536, 512, 16)]
)
def test_a_thread_holds_256_bytes_of_rows_beside_weights(
    width: int, threads: int, pieces: int
) -> None:
    kernel = emitter_shapes.layer_norm_silu(DType.F16, 4096, width)
    assert shape_of(kernel, width) == HeldShape(1, threads, threads * 8, pieces, loads_ahead=2)


def test_a_thread_holds_more_of_rows_alone() -> None:
    kernel = emitter_shapes.softmax(4096, 50304, DType.BF16)
    assert shape_of(kernel, 50304) == HeldShape(1, 256, 2048, 25, loads_ahead=0)


@pytest.mark.parametrize(("limit", "threads"), [(8192, 256), (16384, 256)])
def test_threads_hold_less_of_short_rows_of_varying_length(limit: int, threads: int) -> None:
    shape = shape_of(emitter_shapes.dynamic_softmax(), limit)  # f32
    assert shape is not None
    assert shape.threads == threads


def test_other_chips_keep_what_was_measured_there() -> None:
    gpu = replace(target_facts("cuda:sm_80").section(GpuFacts), held_row_bytes=131072)
    kernel = emitter_shapes.layer_norm_silu(DType.F16, 4096, 50304)
    assert held_shape(kernel, gpu, 50304) == HeldShape(1, 1024, 8192, 7, loads_ahead=0)


def test_a_piece_is_loaded_two_pieces_before_it_is_used() -> None:
    kernel = emitter_shapes.layer_norm_silu(DType.F16, 4096, 50304)
    tiling = gpu_tiling(kernel, TARGET, 32)
    assert tiling is not None
    text = emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text
    last = text[text.rindex("for piece in tl.static_range(13):") :]
    assert last.index("if piece < 11:") < last.index("roffset = (piece + 2) * RBLOCK")
    assert last.index("_ahead = ") < last.index("_ahead[piece]") < last.index("tl.store(")


def test_loads_ahead_are_given_up_before_threads_hold_less() -> None:
    kernel = emitter_shapes.layer_norm_silu(DType.F16, 4096, 50304)
    forms = [gpu_tiling(kernel, TARGET, 32, level) for level in range(3)]
    assert [(f.num_warps, f.loads_ahead) for f in forms if f] == [(16, 2), (16, 0), (32, 0)]
