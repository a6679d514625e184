"""Hints of fused kernels change their artifacts: pipelines, warps, and waves; notes say which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen_svc.backends.cuda.backend import TOOLCHAIN as CUDA
from codegen_svc.backends.kernel_hints import hinted_tiling
from codegen_svc.backends.registry import find_backend
from codegen_svc.backends.rocm.backend import TOOLCHAIN as ROCM
from codegen_svc.backends.triton_gpu import build_with_tiling
from codegen_svc.emitters.triton.tiling import Tiling, gpu_tiling
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.hints import read_hints
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.loop_kernels import emitter_shapes
from tests.support.product_kernels import linear

_LONG = 32768
"""Points of a row that no program holds whole."""


def _sums(points: int, hints: str = "") -> Kernel:
    kernel = parse_kernel(
        f"""kernel sums
param in in0: f32[{64 * points}]
param out out0: f32[64]
for d0 in 64
reduce r0 in {points}
  %0: f32 = load in0[{points}*d0 + r0]
  %1: f32 = exp %0
  %2: f32 = sum %1
  store out0[d0] = %2
"""
    )
    found = read_hints(hints) if hints else ()
    return replace(kernel, hints=tuple(sorted(found)))


def _built(kernel: Kernel, target: str) -> BuiltKernel:
    facts = target_facts(target)
    return find_backend(facts.vendor).build(kernel, facts)[0]


def _stage(built: BuiltKernel, name: str, encoding: str = "utf-8") -> str:
    (stage,) = (stage for stage in built.stages if stage.name == name)
    return stage.content.decode(encoding)


@pytest.mark.parametrize(("hint", "stages"), [("async", 3), ("async=4", 4), ("shared_memory", 2)])
def test_loads_of_long_rows_go_through_shared_memory_on_nvidia(hint: str, stages: int) -> None:
    plain, hinted = (_built(_sums(_LONG, text), "cuda:sm_90a") for text in ("", hint))

    assert "cp.async" not in _stage(plain, "ptx")
    assert "cp.async" in _stage(hinted, "ptx")
    assert f"tl.range(0, rnumel, RBLOCK, num_stages={stages})" in _stage(hinted, "triton")
    assert hinted.launch.shared_bytes > plain.launch.shared_bytes
    assert hinted.notes == (f"hint {hint}: applied",)
    assert plain.notes == ()


def test_a_row_that_is_held_whole_has_no_pipeline_and_a_note_says_so() -> None:
    plain, hinted = (_built(_sums(1024, text), "cuda:sm_90a") for text in ("", "async"))

    assert _stage(hinted, "ptx") == _stage(plain, "ptx")
    assert hinted.notes == (
        "hint async: ignored: a program holds its rows whole, so it has no loop",
    )


@pytest.mark.parametrize("width", [32768, 131072])
def test_a_row_that_is_held_in_pieces_has_no_pipeline_either(width: int) -> None:
    kernel = emitter_shapes.softmax(64, width)
    hinted = _built(replace(kernel, hints=tuple(read_hints("async=3"))), "cuda:sm_90a")

    assert dict(hinted.launch.extras)["form"] == "held"
    assert "cp.async" not in _stage(hinted, "ptx")
    assert hinted.notes == (
        "hint async=3: ignored: a program holds its rows whole, so it has no loop",
    )


@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942"])
def test_a_program_has_the_warps_that_a_hint_states(target: str) -> None:
    kernel = _sums(1024, "num_warps=2")
    tiling = gpu_tiling(replace(kernel, hints=()), target_facts(target), 32)
    assert tiling is not None
    assert tiling.num_warps != 2

    hinted = _built(kernel, target)
    assert hinted.launch.num_warps == 2
    assert hinted.notes == ("hint num_warps=2: applied",)
    if target == "cuda:sm_90a":
        assert ".reqntid 64" in _stage(hinted, "ptx")


def test_a_number_of_waves_reaches_the_code_of_an_amd_gpu() -> None:
    plain, hinted = (_built(_sums(1024, text), "rocm:gfx942") for text in ("", "waves_per_eu=3"))

    assert '"amdgpu-waves-per-eu"="3' in _stage(hinted, "llir")
    assert '"amdgpu-waves-per-eu"="3' not in _stage(plain, "llir")
    assert hinted.notes == ("hint waves_per_eu=3: applied",)


def test_a_kernel_that_does_not_fit_with_its_hints_is_compiled_without_them() -> None:
    # One warp would hold 32 elements of a row of 16,384 in each thread, hundreds of them spilled;
    # a pipeline of 8 stages of such blocks exceeds the shared memory of every block size.
    facts = target_facts("cuda:sm_90a")
    assert facts.gpu is not None
    tight = replace(facts, gpu=replace(facts.gpu, max_shared_bytes=2048))
    kernel = _sums(_LONG, "async=8, num_warps=16")
    backend = find_backend("cuda")
    (plain, *_), (hinted, *_) = (
        backend.build(k, tight) for k in (replace(kernel, hints=()), kernel)
    )

    assert _stage(hinted, "ptx") == _stage(plain, "ptx")
    (note,) = (note for note in hinted.notes if "hints are ignored" in note)
    assert "needs more than cuda:sm_90a has at every tiling: 2048 bytes of shared memory" in note


def _product(target: str, hints: str) -> BuiltKernel:
    """The aligned variant of a product in tiles that AMD's compiler has ping-pong loops for."""
    kernel = replace(linear(1024, 1024, 512), hints=tuple(sorted(read_hints(hints))))
    tiling = Tiling(128, 128, 128, False, 32, 4, 2, kblock=64)
    facts = target_facts(target)
    toolchain = CUDA if facts.vendor == "cuda" else ROCM
    return build_with_tiling(kernel, facts, toolchain, hinted_tiling(tiling, kernel))


@pytest.fixture(scope="module")
def plain() -> BuiltKernel:
    return _product("rocm:gfx942", "block_pingpong=0")


# What the vendor's compiler makes of each option, in one of its own texts.
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("hint", "stage", "there", "absent"),
    [
        ("matrix_instr_nonkdim=16", "amdgcn", "v_mfma_f32_16x16x16_bf16", "v_mfma_f32_32x32x8"),
        ("kpack=2", "ttgir", "kWidth = 8", "kWidth = 4"),
        ("buffer_ops=0", "amdgcn", "global_load_dwordx4", "buffer_load"),
        ("block_pingpong", "amdgcn", "s_setprio 1", ""),
        ("async_copy", "ttgir", "amdg.buffer_load_to_local", "ttg.local_store"),
        ("num_stages=1", "ttgir", "ttg.local_alloc %", "1x128x64xbf16"),
        ("flat_work_group_size=1024", "amdgcn", ".max_flat_workgroup_size: 1024", ""),
        ("sched_max_ilp", "llir", '"amdgpu-sched-strategy"="max-ilp"', ""),
        ("waves_per_eu=2", "llir", '"amdgpu-waves-per-eu"="2', ""),
    ],
)
def test_an_option_of_amd_s_pipeline_changes_the_code(
    hint: str, stage: str, there: str, absent: str, plain: BuiltKernel
) -> None:
    name, _, value = hint.partition("=")
    hints = {"block_pingpong": 0, name: int(value or 1)}
    built = _product("rocm:gfx942", ", ".join(f"{n}={v}" for n, v in hints.items()))

    assert there not in _stage(plain, stage)
    assert there in _stage(built, stage)
    assert not absent or absent in _stage(plain, stage)
    assert not absent or absent not in _stage(built, stage)
    assert f"hint {name}={value or 1}: applied" in built.notes
    recorded = dict(built.launch.extras)["amd_options"].split(", ")
    expected = "schedule max-ilp" if name == "sched_max_ilp" else f"{name}={value or 1}"
    assert expected in recorded
    assert expected not in dict(plain.launch.extras)["amd_options"].split(", ")


def test_an_option_that_does_not_fit_the_program_is_ignored_with_a_reason() -> None:
    built = _product("rocm:gfx942", "block_pingpong, flat_work_group_size=64, num_warps=8")
    assert set(built.notes) == {
        "hint block_pingpong: ignored: Triton makes such loops of other tiles, numbers of warps"
        " and stages",
        "hint flat_work_group_size=64: ignored: a program has 512 work items",
        "hint num_warps=8: applied",
    }
    assert "flat_work_group_size=512" in dict(built.launch.extras)["amd_options"]


@pytest.mark.parametrize(
    ("target", "passes"),
    [
        ("rocm:gfx942", ("accelerate_matmul", "coalesce", "convert_to_buffer_ops", "pipeline")),
        ("cuda:sm_90a", ("accelerate_matmul", "coalesce", "pipeline", "remove_layout_conversions")),
    ],
)
def test_the_passes_of_triton_are_stages_that_show_both_texts(
    target: str, passes: tuple[str, ...]
) -> None:
    shown, usual = _product(target, "passes"), _product(target, "passes=0")

    assert _stage(shown, shown.binary_stage, "latin-1") == _stage(
        usual, usual.binary_stage, "latin-1"
    )
    names = [stage.name for stage in shown.stages if stage.name.startswith("ttgir.")]
    assert {f"ttgir.{name}" for name in passes} <= set(names)
    assert not any(stage.name.startswith("ttgir.") for stage in usual.stages)
    after: list[str] = []
    for name in names:
        lines = _stage(shown, name).splitlines()[3:]
        before = [line[1:] for line in lines if line[0] in " -"]
        assert not after or before == after
        after = [line[1:] for line in lines if line[0] in " +"]
    assert any("dot" in line for line in after)
