"""Runs emitted Triton source in Triton's CPU interpreter, in a process of its own.

TRITON_INTERPRET=1 selects the interpreter when `triton` is imported, so it cannot share a process
with tests that compile. One process serves all tests, because its start takes seconds. Protocol:
each pickle on stdin is a list of cases; the process answers on stdout with a pickle of every
case's buffers after the run, and ends when stdin closes.
"""

from __future__ import annotations

import linecache
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from codegen_svc.emitters.triton.source import TritonSource
from tests.support.interpreted_gluon import in_triton, interpreted_names

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """One launch: source, numbers of programs, buffers in the order of parameters, sizes."""

    source: TritonSource
    programs: int | tuple[int, int, int]
    buffers: tuple[np.ndarray[Any, Any], ...]
    sizes: tuple[int, ...]


def run_interpreted(cases: list[Case]) -> list[tuple[np.ndarray[Any, Any], ...] | str]:
    """The buffers after each launch, or the text of the error that ended it."""
    process, errors = _interpreter()
    assert process.stdin is not None and process.stdout is not None
    try:
        pickle.dump(cases, process.stdin)
        process.stdin.flush()
        results: list[tuple[np.ndarray[Any, Any], ...] | str] = pickle.load(process.stdout)
    except (BrokenPipeError, EOFError):
        process.wait()
        errors.seek(0)
        said = errors.read().decode()[-4000:]
        end_interpreter()
        raise AssertionError(f"the interpreter ended:\n{said}") from None
    return results


def end_interpreter() -> None:
    """Ends the process, if it runs."""
    if _interpreter.cache_info().currsize:
        process, errors = _interpreter()
        process.communicate()
        errors.close()
        _interpreter.cache_clear()


@lru_cache(maxsize=1)
def _interpreter() -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """The process, and the file with its stderr."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.triton_interpreter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    return process, errors


def _run(case: Case) -> tuple[np.ndarray[Any, Any], ...] | str:
    import torch  # noqa: PLC0415 - only the child needs it

    source = case.source
    text = in_triton(source.text) if source.is_gluon else source.text
    file_name = f"{source.name}.py"
    linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    namespace: dict[str, Any] = {"__name__": source.name, **interpreted_names()}
    exec(compile(text, file_name, "exec"), namespace)
    tensors = [_to_torch(torch, array) for array in case.buffers]
    grid = case.programs if isinstance(case.programs, tuple) else (case.programs,)
    given = (*tensors, *case.sizes, *_maps(source, tensors))
    named = dict(source.constexprs)
    if source.signature:  # a constant may stand between the arguments of a launch
        launched = [name for name, kind in source.signature if kind != "constexpr"]
        named |= dict(zip(launched, given, strict=True))
    try:
        namespace[source.name][grid](*(() if source.signature else given), **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{error.__cause__}"
    return tuple(
        _to_numpy(tensor, array) for tensor, array in zip(tensors, case.buffers, strict=True)
    )


def _maps(source: TritonSource, tensors: list[Any]) -> list[Any]:
    """The tensor maps among a launch's arguments."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: PLC0415

    names = [name for name, _ in source.signature]
    sizes: dict[str, Any] = dict(source.constexprs)
    _STEPS.clear()
    made_maps = []
    for made in source.maps:
        shape, strides = list(made.shape), [*made.strides, 1]
        _STEPS[(*shape, *strides)] = made.steps or (1,) * len(shape)
        buffer, block = tensors[names.index(f"{made.param}_ptr")], made.block_shape(sizes)
        made_maps.append(TensorDescriptor(buffer, shape, strides, list(block)))
    return made_maps


_STEPS: dict[tuple[int, ...], tuple[int, ...]] = {}
"""The steps of the blocks of a case's tensor maps, by their shapes and strides."""


def _copy_steps() -> None:
    """Lets the interpreter copy each second element of a matrix, as hardware does."""
    from triton import language  # noqa: PLC0415 - only the child needs it
    from triton.runtime.interpreter import TensorDescHandle, TensorHandle  # noqa: PLC0415

    def materialize_pointers(self: Any, offsets: list[Any]) -> Any:
        shape = [extent.data.item() for extent in self.shape]
        strides = [stride.data.item() for stride in self.strides]
        pointers = np.broadcast_to(self.base.data, self.block_shape)
        masks = np.ones(self.block_shape, dtype=bool)
        size = self.base.dtype.element_ty.primitive_bitwidth // 8
        for axis, step in enumerate(_STEPS[(*shape, *strides)]):
            sides = [1] * len(shape)
            sides[axis] = self.block_shape[axis]
            at = (offsets[axis].data + step * np.arange(sides[axis])).reshape(sides)
            pointers = pointers + (size * at * strides[axis]).astype(np.uint64)
            masks = masks & (at >= 0) & (at < shape[axis])
        return TensorHandle(pointers, self.base.dtype.scalar), TensorHandle(masks, language.int1)

    TensorDescHandle.materialize_pointers = materialize_pointers


def _to_torch(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    if array.dtype == np.bool_:
        return torch.from_numpy(array.view(np.uint8).copy())
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _to_numpy(tensor: Any, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import torch  # noqa: PLC0415

    if like.dtype.name == "bfloat16":
        return np.asarray(tensor.view(torch.int16).numpy().view(like.dtype))
    return np.asarray(tensor.numpy().view(like.dtype))


def _multiply_bfloat16() -> None:
    """Lets the interpreter multiply matrices of bf16: it holds their bits, and multiplies those."""
    from triton import language  # noqa: PLC0415 - only the child needs it
    from triton.runtime import interpreter  # noqa: PLC0415

    builder = interpreter.InterpreterBuilder
    as_it_is = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        if a.dtype == language.bfloat16:
            a, b = (
                interpreter.TensorHandle(
                    (side.data.astype(np.uint32) << 16).view(np.float32), language.float32
                )
                for side in (a, b)
            )
        return as_it_is(self, a, b, *others)

    builder.create_dot = create_dot


def _serve() -> None:
    _multiply_bfloat16()
    _copy_steps()
    while True:
        try:
            received = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump([_run(case) for case in received], sys.stdout.buffer)
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
