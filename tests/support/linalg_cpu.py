"""Runs the Linalg text of an Ascend kernel on this machine's CPU.

MLIR's and LLVM's own tools lower it; one call for each program, arguments as Triton-Ascend's
launcher passes them. This verifies our source and the adapter, not code for an Ascend chip.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelfarm.dtypes import DType
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts
from kernelfarm.ir.triton.user_kernel import Pointer, UserKernel
from tests.support.third_party import output_of

TOOLS = ("mlir-opt-19", "mlir-translate-19", "clang-19")

_PASSES = [
    "--allow-unregistered-dialect",
    "--convert-tensor-to-linalg",
    "--convert-elementwise-to-linalg",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--convert-linalg-to-loops",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--memref-expand",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--arith-expand",
    "--convert-cf-to-llvm",
    "--convert-arith-to-llvm",
    "--convert-complex-to-llvm",
    "--convert-vector-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--lower-affine",
    "--convert-arith-to-llvm",
    "--reconcile-unrealized-casts",
]


# An address that a kernel loads becomes a memref of rank 1. MLIR's own dialects have no operation
# for that, but LLVM's dialect makes the descriptor: {allocated, aligned, offset, sizes, strides}.
_POINTER = re.compile(
    r"%(?P<name>\w+) = hivm\.hir\.pointer_cast\((?P<address>%\w+)\) \[(?P<size>%\w+)\]"
    r" : (?P<type>.*)"
)
_STRUCT = "!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>"
_POINTER_AS_STRUCT = rf"""%p_\g<name> = llvm.inttoptr \g<address> : i64 to !llvm.ptr
%zero_\g<name> = arith.constant 0 : i64
%one_\g<name> = arith.constant 1 : i64
%n_\g<name> = arith.index_cast \g<size> : index to i64
%a_\g<name> = llvm.mlir.undef : {_STRUCT}
%b_\g<name> = llvm.insertvalue %p_\g<name>, %a_\g<name>[0] : {_STRUCT}
%c_\g<name> = llvm.insertvalue %p_\g<name>, %b_\g<name>[1] : {_STRUCT}
%d_\g<name> = llvm.insertvalue %zero_\g<name>, %c_\g<name>[2] : {_STRUCT}
%e_\g<name> = llvm.insertvalue %n_\g<name>, %d_\g<name>[3, 0] : {_STRUCT}
%f_\g<name> = llvm.insertvalue %one_\g<name>, %e_\g<name>[4, 0] : {_STRUCT}
%\g<name> = builtin.unrealized_conversion_cast %f_\g<name> : {_STRUCT} to \g<type>"""

# What the lowered text calls and Debian's tools do not carry: MLIR's copy between blocks of
# different strides (descriptors are {rank, pointer to {allocated, aligned, offset, sizes,
# strides}}), functions of CANN's library, and compiler-rt's rounding to bf16.
_RUNTIME = """
#include <stdint.h>
#include <string.h>
typedef struct { int64_t rank; void *descriptor; } Unranked;
typedef struct { char *allocated, *aligned; int64_t offset, shape[]; } Ranked;
static void copy(int64_t size, int64_t rank, const int64_t *extents, char *to,
                 const int64_t *to_steps, const char *from, const int64_t *from_steps) {
  if (rank == 0) { memcpy(to, from, size); return; }
  for (int64_t i = 0; i < extents[0]; i++)
    copy(size, rank - 1, extents + 1, to + i * to_steps[0] * size, to_steps + 1,
         from + i * from_steps[0] * size, from_steps + 1);
}
void memrefCopy(int64_t size, Unranked *source, Unranked *target) {
  Ranked *from = source->descriptor, *to = target->descriptor;
  int64_t rank = source->rank;
  copy(size, rank, from->shape, to->aligned + to->offset * size, to->shape + rank,
       from->aligned + from->offset * size, from->shape + rank);
}
float tanhf(float), powf(float, float);
float __hmf_tanhf(float x) { return tanhf(x); }
float __hmf_powf(float x, float y) { return powf(x, y); }
__bf16 __truncsfbf2(float value) {
  uint32_t bits;
  __bf16 result;
  memcpy(&bits, &value, 4);
  bits = value != value ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
  uint16_t high = bits >> 16;
  memcpy(&result, &high, 2);
  return result;
}
"""


_SCALARS: dict[DType, Any] = {
    DType.F32: ctypes.c_float,
    DType.I32: ctypes.c_int32,
    DType.I64: ctypes.c_int64,
}


def run_linalg(
    built: BuiltKernel,
    buffers: list[np.ndarray[Any, Any]],
    sizes: dict[str, int],
    folder: Path,
) -> None:
    """Runs every program of the grid; buffers are written in place."""
    function = load_linalg(linalg_of(built), built.launch.symbol, folder)
    call_linalg(function, built.launch, buffers, sizes)


def run_user_linalg(
    built: BuiltKernel,
    kernel: UserKernel,
    arguments: Sequence[np.ndarray[Any, Any] | float],
    grid: tuple[int, int, int],
    folder: Path,
) -> None:
    """Runs every program of a user's kernel; arrays are written in place.

    `arguments` are those of the parameters that a launch passes, in order.
    """
    function = load_linalg(linalg_of(built), built.launch.symbol, folder)
    unused = np.zeros(8, dtype=np.int8)
    passed = [*_memref(unused), *_memref(unused)]
    for param, value in zip(kernel.launched, arguments, strict=True):
        if isinstance(param, Pointer):
            assert isinstance(value, np.ndarray)
            passed += _memref(value.reshape(-1))
        else:
            passed.append(_SCALARS[param.dtype](value))
    for program in itertools.product(*(range(extent) for extent in grid)):
        function(*passed, *(ctypes.c_int32(number) for number in (*grid, *program)))


def call_linalg(
    function: Any,
    launch: LaunchFacts,
    buffers: list[np.ndarray[Any, Any]],
    sizes: dict[str, int],
) -> None:
    """Calls what `load_linalg` gave, once for each program of the grid."""
    programs = launch.grid[0].evaluate(sizes)
    unused = np.zeros(8, dtype=np.int8)
    for program in range(programs):
        arguments: list[Any] = []
        for buffer in (unused, unused, *buffers):
            arguments += _memref(buffer)
        arguments += [ctypes.c_int64(value) for value in sizes.values()]
        arguments += [ctypes.c_int32(value) for value in (programs, 1, 1, program, 0, 0)]
        function(*arguments)


def linalg_of(built: BuiltKernel) -> str:
    """A kernel's Linalg text."""
    return next(stage.content for stage in built.stages if stage.name == "linalg").decode()


def load_linalg(linalg: str, symbol: str, folder: Path) -> Any:
    """A kernel's function, compiled for this machine; the folder has to be its own."""
    dropped = ("annotation.mark", "gpu.barrier")  # a program is one thread here
    kept = (line for line in linalg.splitlines() if not any(word in line for word in dropped))
    plain = [_POINTER.sub(_POINTER_AS_STRUCT, line) for line in kept]
    lowered = output_of("mlir-opt-19", *_PASSES, text="\n".join(plain))
    llvm = output_of("mlir-translate-19", "--mlir-to-llvmir", text=lowered)
    source, runtime, library = (folder / n for n in ("kernel.ll", "runtime.c", "kernel.so"))
    source.write_text(llvm)
    runtime.write_text(_RUNTIME)
    flags = ("-O1", "-shared", "-fPIC", "-Wno-override-module", "-o", str(library))
    output_of("clang-19", *flags, str(source), str(runtime), "-lm")
    function = ctypes.CDLL(str(library))[symbol]
    function.restype = None
    return function


def _memref(array: np.ndarray[Any, Any]) -> list[Any]:
    """A rank-1 memref descriptor: allocated and aligned pointer, offset, size, stride."""
    pointer = ctypes.c_void_p(array.ctypes.data)
    return [pointer, pointer, ctypes.c_int64(0), ctypes.c_int64(array.size), ctypes.c_int64(1)]
