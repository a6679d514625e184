"""Runs emitted Triton source in Triton's CPU interpreter, in a process of its own.

The interpreter is chosen when `triton` is imported (TRITON_INTERPRET=1), so it cannot share a
process with tests that compile. Protocol: a pickle of our own making on stdin (a list of cases), a
pickle of each case's buffers after the run on stdout.
"""

from __future__ import annotations

import linecache
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codegen_svc.emitters.triton_source import TritonSource

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """One launch: source, number of programs, buffers in the order of parameters, sizes."""

    source: TritonSource
    programs: int
    buffers: tuple[np.ndarray[Any, Any], ...]
    sizes: tuple[int, ...]


def run_interpreted(cases: list[Case]) -> list[tuple[np.ndarray[Any, Any], ...] | str]:
    """The buffers after each launch, or the text of the error that ended it."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.codegen_triton.interpreted"],
        input=pickle.dumps(cases),
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        timeout=560,
        check=False,
    )
    if finished.returncode != 0:
        raise AssertionError(finished.stderr.decode()[-4000:])
    results: list[tuple[np.ndarray[Any, Any], ...] | str] = pickle.loads(finished.stdout)
    return results


def _run(case: Case) -> tuple[np.ndarray[Any, Any], ...] | str:
    import torch  # noqa: PLC0415 - only the child needs it

    source = case.source
    file_name = f"{source.name}.py"
    lines = source.text.splitlines(keepends=True)
    linecache.cache[file_name] = (len(source.text), None, lines, file_name)
    namespace: dict[str, Any] = {"__name__": source.name}
    exec(compile(source.text, file_name, "exec"), namespace)
    tensors = [_to_torch(torch, array) for array in case.buffers]
    try:
        namespace[source.name][(case.programs,)](*tensors, *case.sizes, **dict(source.constexprs))
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{error.__cause__}"
    return tuple(
        _to_numpy(tensor, array) for tensor, array in zip(tensors, case.buffers, strict=True)
    )


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


if __name__ == "__main__":
    received = pickle.loads(sys.stdin.buffer.read())
    output = pickle.dumps([_run(case) for case in received])
    sys.stdout.buffer.write(output)
