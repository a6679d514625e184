"""Sorts as Triton source: run in Triton's interpreter, built for every vendor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codegen_svc.backends.ascend.backend import BACKEND as ASCEND
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.emitters.triton.local_tiling import local_bytes, local_tiling
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import LocalBufferFacts, TritonFacts, all_targets, target_facts
from optimizer_svc.pipeline import optimize
from tests.support.linalg_cpu import TOOLS, run_linalg
from tests.support.loop_kernels.sorts import AMONG_OTHERS, row_elements
from tests.support.single_operator import Call, lowered
from tests.support.third_party import need
from tests.support.triton_cases import assert_same, expected, interpreter_case
from tests.support.triton_interpreter import run_interpreted

F32, F64, I64, I32, I16, U8, BOOL = (
    DType.F32,
    DType.F64,
    DType.I64,
    DType.I32,
    DType.I16,
    DType.U8,
    DType.BOOL,
)
ROWS = 3
TILINGS = {
    "rows": Tiling(4, 4, 32, True, 32),
    "row": Tiling(1, 1, 32, True, 64),
    "full": Tiling(2, 2, 16, True, 32),
}
# The same texts take as long again for AMD; goldens and the interpreter check them by default.
BACKENDS = pytest.mark.parametrize(
    ("backend", "target"),
    [
        pytest.param(CUDA, "cuda:sm_90a", id="cuda"),
        pytest.param(ROCM, "rocm:gfx942", id="rocm", marks=pytest.mark.slow),
    ],
)


def sort_kernel(dtype: DType, order: str, width: int, rows: int = ROWS) -> Kernel:
    """Sorted positions and the elements in that order."""
    numel, kind = rows * width, dtype.value
    return parse_kernel(
        f"kernel sort_{order}\nparam in in0: {kind}[{numel}]\nparam out out0: i64[{numel}]\n"
        f"param out out1: {kind}[{numel}]\nfor d0 in {rows}\nreduce r0 in {width}\n"
        f"  %0: {kind} = load in0[{width}*d0 + r0]\n  %1: i64 = sort {order} %0\n"
        f"  %2 = indirect %1 in {width}\n  %3: {kind} = load in0[{width}*d0 + %2]\n"
        f"  store out0[{width}*d0 + r0] = %1\n  store out1[{width}*d0 + r0] = %3\n"
    )


def sort_buffers(kernel: Kernel) -> dict[str, np.ndarray[Any, Any]]:
    numel = kernel.params[0].size_elems.as_int()
    x = row_elements(kernel.params[0].dtype, numel, seed=numel)
    return {"in0": x, "out0": np.zeros(numel, np.int64), "out1": np.zeros_like(x)}


SORTS = [
    (dtype, order, form)
    for dtype in (F32, F64, I64, I32, I16, U8, BOOL)
    for order, form in (("ascending", "rows"), ("descending", "row"), ("descending", "full"))
    if dtype in (F32, I64) or form != "full"
]


@pytest.fixture(scope="module")
def sort_results() -> Any:
    kernels = [sort_kernel(d, order, 16 if f == "full" else 21) for d, order, f in SORTS]
    kernels.append(parse_kernel(AMONG_OTHERS))
    tilings = [*(TILINGS[form] for _, _, form in SORTS), TILINGS["rows"]]
    buffers = [sort_buffers(kernel) for kernel in kernels[:-1]]
    numbers = np.random.default_rng(0).random(210).astype(np.float32)
    outs = {f"out{k}": np.zeros(7 if k == 1 else 210, np.float32) for k in (0, 1, 3)}
    buffers.append({"in0": numbers, **outs, "out2": np.zeros(210, np.int64)})
    launches = [
        interpreter_case(kernel, b, {}, tiling)
        for kernel, b, tiling in zip(kernels, buffers, tilings, strict=True)
    ]
    return list(zip(kernels, buffers, run_interpreted(launches), strict=True))


@pytest.mark.parametrize("number", range(len(SORTS) + 1))
def test_a_sort_equals_the_loop_interpreter(number: int, sort_results: Any) -> None:
    kernel, buffers, result = sort_results[number]
    assert not isinstance(result, str), result
    reference = expected(kernel, buffers, {})
    for param, got in zip(kernel.params, result, strict=True):
        assert_same(param.dtype, got, reference[param.name], 4)


@BACKENDS
def test_gpus_sort_rows_that_a_block_holds(backend: Any, target: str) -> None:
    # A sort of 64 elements takes seconds to compile; 16 are enough to compare types.
    kernels = [sort_kernel(d, "ascending", n) for d, n in ((F32, 40), (F64, 12), (U8, 12))]
    for kernel in (*kernels, parse_kernel(AMONG_OTHERS)):
        built = backend.build(kernel, target_facts(target))[-1]
        assert dict(built.launch.extras)["form"] == "persistent"
        assert built.launch.spills == 0


@pytest.mark.slow
@BACKENDS
def test_gpus_sort_the_longest_rows(backend: Any, target: str) -> None:
    for dtype in (F32, I64):
        most = target_facts(target).section(TritonFacts).max_sort_elems
        kernel = sort_kernel(dtype, "descending", most, rows=512)
        built = backend.build(kernel, target_facts(target))[-1]
        assert built.launch.rblock_elems == most


@BACKENDS
def test_a_row_of_bounded_length_is_held_whole(backend: Any, target: str) -> None:
    kernel = parse_kernel(
        "kernel bounded\nsize n from 2 to 30\nparam in in0: f32[8*n]\nparam out out0: i64[8*n]\n"
        "for d0 in 8\nreduce r0 in n\n  %0: f32 = load in0[n*d0 + r0]\n"
        "  %1: i64 = sort ascending %0\n  store out0[n*d0 + r0] = %1\n"
    )
    for built in backend.build(kernel, target_facts(target)):
        assert built.launch.rblock_elems == 32


def test_rows_that_no_block_holds_are_refused() -> None:
    text = (
        "kernel long\nsize n from 2\nparam in in0: f32[n]\nparam out out0: i64[n]\nreduce r0 in n\n"
    )
    text += "  %0: f32 = load in0[r0]\n  %1: i64 = sort ascending %0\n  store out0[r0] = %1\n"
    for backend, target in ((CUDA, "cuda:sm_90a"), (ASCEND, "ascend:910b")):
        with pytest.raises(KernelRejectedError, match="rows of any number of elements"):
            backend.build(parse_kernel(text), target_facts(target))
        with pytest.raises(KernelRejectedError, match="sorts rows of 2049 elements"):
            backend.build(sort_kernel(F32, "ascending", 2049), target_facts(target))


def test_the_frontend_sends_only_rows_that_a_block_holds() -> None:
    for target in all_targets().values():
        if target.triton is not None:
            assert target.max_sorted_elems is not None
            assert target.max_sorted_elems <= target.triton.max_sort_elems


@pytest.mark.parametrize("dtype", [F32, I64], ids=["f32", "i64"])
def test_the_longest_rows_fit_the_buffer_of_an_ascend_chip(dtype: DType) -> None:
    target = target_facts("ascend:910b")
    most = target.section(TritonFacts).max_sort_elems
    kernel = sort_kernel(dtype, "ascending", most)
    tiling = local_tiling(kernel, target, 32)
    assert tiling is not None and tiling.is_persistent
    chip = target.section(LocalBufferFacts)
    assert local_bytes(kernel, tiling, chip) <= chip.size_bytes * 2 // 3
    (built,) = ASCEND.build(kernel, target)
    assert built.launch.rblock_elems == most


@pytest.mark.third_party
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("dtype", [F32, I64, I32], ids=lambda dtype: dtype.value)
def test_linalg_of_sorts_equals_the_loop_interpreter(
    dtype: DType, order: str, tmp_path: Path
) -> None:
    need(*TOOLS)
    kernel = sort_kernel(dtype, order, 45)
    buffers = sort_buffers(kernel)
    reference = expected(kernel, buffers, {})
    built = ASCEND.build(kernel, target_facts("ascend:910b"))[-1]
    arrays = {key: array.copy() for key, array in buffers.items()}
    run_linalg(built, [arrays[p.name] for p in kernel.params], {}, tmp_path)
    for param in kernel.params:
        assert_same(param.dtype, arrays[param.name], reference[param.name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["f32", "i64"])
@pytest.mark.parametrize("op", ["sort.default", "topk.default", "mode.default", "median.dim"])
def test_every_kernel_around_the_longest_rows_is_built_for_ascend(
    op: str, dtype: torch.dtype
) -> None:
    target = target_facts("ascend:910b")
    more = {"topk.default": [5], "median.dim": [1]}.get(op, [])
    call = Call(f"aten.{op}", [torch.zeros(64, target.max_sorted_elems or 0, dtype=dtype), *more])
    program = optimize(lowered(call).graph, target).program
    assert program.kernels
    for kernel in program.kernels:
        assert ASCEND.build(kernel, target)
