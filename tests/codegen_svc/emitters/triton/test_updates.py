"""In-place updates as Triton source: run in Triton's interpreter, built for every vendor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codegen_svc.backends.ascend.backend import BACKEND as ASCEND
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.loop_ir import Access
from kernelfarm.targets import target_facts
from tests.support.linalg_cpu import TOOLS, run_linalg
from tests.support.loop_kernels.updating import updating_buffers, updating_kernels
from tests.support.third_party import need
from tests.support.triton_cases import assert_same, expected, interpreter_case
from tests.support.triton_interpreter import run_interpreted

KERNELS = updating_kernels()
ROWS = {"persistent": Tiling(4, 4, 128, True, 32), "looped": Tiling(2, 2, 16, False, 32)}
CASES = [(name, form) for name, kernel in KERNELS.items() for form in ("persistent", "looped")]


@pytest.fixture(scope="module")
def results() -> Any:
    launches = []
    for name, form in CASES:
        kernel = KERNELS[name]
        tiling = ROWS[form] if kernel.reduction else Tiling(64, 64, 0, False, 32)
        launches.append(interpreter_case(kernel, updating_buffers(kernel), {}, tiling))
    return run_interpreted(launches)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_update_equals_the_loop_interpreter(number: int, results: Any) -> None:
    kernel, result = KERNELS[CASES[number][0]], results[number]
    assert not isinstance(result, str), result
    reference = expected(kernel, updating_buffers(kernel), {})
    for param, got in zip(kernel.params, result, strict=True):
        if param.access is not Access.READ:
            assert_same(param.dtype, got, reference[param.name], 16)


@pytest.mark.parametrize(
    ("backend", "target"), [(CUDA, "cuda:sm_90a"), (ROCM, "rocm:gfx942")], ids=["cuda", "rocm"]
)
def test_gpus_compile_updates(backend: Any, target: str) -> None:
    for kernel in KERNELS.values():
        assert backend.build(kernel, target_facts(target))[-1].launch.spills == 0


@pytest.mark.third_party
@pytest.mark.parametrize("name", KERNELS)
def test_linalg_of_updates_equals_the_loop_interpreter(name: str, tmp_path: Path) -> None:
    need(*TOOLS)
    kernel = KERNELS[name]
    arrays = updating_buffers(kernel)
    reference = expected(kernel, arrays, {})
    built = ASCEND.build(kernel, target_facts("ascend:910b"))[-1]
    run_linalg(built, [arrays[p.name] for p in kernel.params], {}, tmp_path)
    for param in kernel.params:
        if param.access is not Access.READ:
            assert_same(param.dtype, arrays[param.name], reference[param.name], 16)
