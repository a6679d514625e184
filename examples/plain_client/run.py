"""Runs a program for the CPU on NumPy arrays: sizes, buffers, and one call for each launch.

`docs/cpu.md` describes the interface `kf-cpu-1` of the binaries.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from examples.plain_client.compiled import Compiled
from kernelfarm.v1 import artifact_pb2, graph_pb2, plan_pb2

Array = npt.NDArray[np.generic]

ABI = "kf-cpu-1"
_DTYPES = {
    graph_pb2.DTYPE_F64: np.float64,
    graph_pb2.DTYPE_F32: np.float32,
    graph_pb2.DTYPE_F16: np.float16,
    graph_pb2.DTYPE_I64: np.int64,
    graph_pb2.DTYPE_I32: np.int32,
    graph_pb2.DTYPE_I16: np.int16,
    graph_pb2.DTYPE_I8: np.int8,
    graph_pb2.DTYPE_U8: np.uint8,
    graph_pb2.DTYPE_BOOL: np.bool_,
}
_OPERATIONS: dict[int, Callable[[Sequence[int]], int]] = {
    graph_pb2.EXPR_OP_ADD: sum,
    graph_pb2.EXPR_OP_MUL: math.prod,
    graph_pb2.EXPR_OP_FLOOR_DIV: lambda values: values[0] // values[1],
    graph_pb2.EXPR_OP_MOD: lambda values: values[0] % values[1],
    graph_pb2.EXPR_OP_MIN: min,
    graph_pb2.EXPR_OP_MAX: max,
}


def run(compiled: Compiled, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a program for contiguous inputs.

    Raises:
        NotImplementedError: the program needs a framework, constants or an opaque element type.
        IndexError: an index that the program read from memory is outside its tensor.
    """
    plan = compiled.program.plan
    sizes = {
        source.symbol: int(inputs[source.input][()])
        if source.axis < 0
        else inputs[source.input].shape[source.axis]
        for source in plan.symbols
    }
    # The arena and every temporary begin at a multiple of the alignment.
    arena = _aligned(evaluate(plan.arena_bytes, sizes), plan.arena_alignment_bytes)
    buffers = {b.name: _buffer(b, inputs, arena, sizes) for b in plan.buffers}
    kernels = _load_kernels(compiled)
    for step in plan.steps:
        if step.WhichOneof("form") != "launch":
            raise NotImplementedError(
                f"step {step.WhichOneof('form')}: only a framework can run it; expected launches"
            )
        launch = step.launch
        arrays = [buffers[name] for name in launch.buffers]
        _call(kernels[launch.kernel], arrays, [evaluate(size, sizes) for size in launch.sizes])
    return [_output(output, buffers, sizes) for output in plan.outputs]


def evaluate(expr: graph_pb2.Expr, sizes: Mapping[str, int]) -> int:
    """The value of a size expression."""
    match expr.WhichOneof("form"):
        case "constant":
            return int(expr.constant)
        case "symbol":
            return sizes[expr.symbol]
        case "call":
            return _OPERATIONS[expr.call.op]([evaluate(e, sizes) for e in expr.call.operands])
        case form:
            raise ValueError(f"an expression of form {form}; expected constant, symbol or call")


def _buffer(
    buffer: plan_pb2.Buffer, inputs: Sequence[Array], arena: Array, sizes: Mapping[str, int]
) -> Array:
    if buffer.dtype not in _DTYPES:
        name = graph_pb2.Dtype.Name(buffer.dtype)
        raise NotImplementedError(f"buffer {buffer.name} has elements of {name}, which NumPy lacks")
    dtype, elems = np.dtype(_DTYPES[buffer.dtype]), evaluate(buffer.size_elems, sizes)
    match buffer.kind:
        case plan_pb2.BUFFER_KIND_INPUT:
            given = np.ascontiguousarray(inputs[buffer.position]).reshape(-1)
            if given.dtype != dtype or given.size != elems:
                raise ValueError(
                    f"input {buffer.position} has {given.size} elements of {given.dtype}; expected"
                    f" {elems} of {dtype}"
                )
            return given
        case plan_pb2.BUFFER_KIND_OUTPUT:
            return np.empty(elems, dtype)
        case plan_pb2.BUFFER_KIND_TEMPORARY:
            first = evaluate(buffer.offset_bytes, sizes)
            return arena[first : first + elems * dtype.itemsize].view(dtype)
        case kind:
            name = plan_pb2.BufferKind.Name(kind)
            raise NotImplementedError(f"buffer {buffer.name} is a {name}; this example has none")


def _aligned(size_bytes: int, alignment_bytes: int) -> Array:
    memory = np.empty(size_bytes + alignment_bytes, np.uint8)
    first = -memory.ctypes.data % max(alignment_bytes, 1)
    return memory[first : first + size_bytes]


def _load_kernels(compiled: Compiled) -> list[Callable[..., int]]:
    """The general variant of each kernel of the plan, from memory that no file names."""
    general: dict[bytes, artifact_pb2.Artifact] = {
        artifact.key: artifact
        for artifact in compiled.program.artifacts
        if not artifact.guard.atoms
    }
    return [_load(general[use.key], compiled.binaries) for use in compiled.program.plan.kernels]


def _load(artifact: artifact_pb2.Artifact, binaries: Mapping[bytes, bytes]) -> Callable[..., int]:
    if artifact.launch.extras["abi"] != ABI:
        raise ValueError(f"a binary of interface {artifact.launch.extras['abi']!r}; expected {ABI}")
    (stage,) = (s for s in artifact.stages if s.name == artifact.binary_stage)
    # It stays open: the dynamic linker takes a second file of the same path for the first one.
    memory = os.memfd_create(artifact.launch.symbol)
    with os.fdopen(memory, "wb", closefd=False) as file:
        file.write(binaries[stage.blob.sha256])
    library = ctypes.CDLL(f"/proc/self/fd/{memory}", mode=os.RTLD_LAZY)
    entry = library[artifact.launch.symbol]
    entry.restype = ctypes.c_int32
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32]
    return entry


def _call(kernel: Callable[..., int], arrays: Sequence[Array], sizes: Sequence[int]) -> None:
    addresses = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
    values = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    one_thread = 1
    if kernel(ctypes.addressof(addresses), ctypes.addressof(values), one_thread):
        raise IndexError("an index that the program read from memory is outside its tensor")


def _output(
    output: plan_pb2.Output, buffers: Mapping[str, Array], sizes: Mapping[str, int]
) -> Array:
    match output.WhichOneof("form"):
        case "view":
            view = output.view
            base = buffers[view.buffer].view(_DTYPES[view.dtype])
            start = evaluate(view.offset_elems, sizes)
            shape = [evaluate(size, sizes) for size in view.sizes]
            strides = [evaluate(stride, sizes) * base.itemsize for stride in view.strides]
            return np.lib.stride_tricks.as_strided(base[start:], shape, strides)
        case "integer":
            return np.asarray(evaluate(output.integer, sizes))
        case form:
            raise NotImplementedError(f"an output of form {form}; expected a tensor or an integer")
