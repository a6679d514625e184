"""Hints of fused kernels change their artifacts: pipelines, warps, and waves; notes say which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen_svc.backends.registry import find_backend
from codegen_svc.emitters.triton.tiling import gpu_tiling
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.hints import read_hints
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

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


def _stage(built: BuiltKernel, name: str) -> str:
    (stage,) = (stage for stage in built.stages if stage.name == name)
    return stage.content.decode()


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
