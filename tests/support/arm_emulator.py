"""Arm kernels run by QEMU: libraries of the CPU backend, called on NumPy arrays.

A process for each call loads the library by the system's own linker, with GNU's OpenMP runtime
beside it. QEMU computes what the instructions compute; it says nothing about their speed.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from kernelfarm.ir.loop_ir import Kernel
from tests.support.compiled_kernels import NUMPY, built, stage
from tests.support.not_run import PREFIX

EMULATOR, COMPILER = "qemu-aarch64", "aarch64-linux-gnu-gcc"
_LIBRARIES = "/usr/aarch64-linux-gnu"
_SOURCE = Path(__file__).with_name("arm_runner.c")
PROCESSORS = {
    # Armv8.0: an instruction of a later version ends the process.
    "cpu:aarch64": "cortex-a57",
    "cpu:aarch64-bf16": "max,sve=off",
    # With lengths of 16 and 32 bytes; a process has the longest one.
    "cpu:aarch64-sve256": "max,sve256=on",
}
"""By target: what QEMU emulates."""


def needs_arm() -> pytest.MarkDecorator:
    """A mark that lists a test as NOT RUN if QEMU or the cross compiler is missing."""
    missing = [tool for tool in (EMULATOR, COMPILER) if shutil.which(tool) is None]
    reason = f"{PREFIX}{', '.join(missing)} (Debian packages qemu-user and g++-aarch64-linux-gnu)"
    return pytest.mark.skipif(bool(missing), reason=reason)


@dataclass(frozen=True, slots=True)
class ArmProcess:
    """A process on the processor of a target, in which OpenMP has started `threads`.

    `sve_bytes` are the lengths of vectors of the thread that calls, and of the others; 0: as QEMU
    has them.
    """

    target: str
    threads: int = 1
    sve_bytes: tuple[int, int] = (0, 0)

    def call(
        self, library: bytes, symbol: str, arrays: Sequence[np.ndarray], sizes: Sequence[int]
    ) -> int:
        """Calls a function of a library, which changes the arrays; returns its result."""
        counts = [len(arrays), len(sizes), *(array.nbytes for array in arrays), *sizes]
        request = struct.pack(f"<{len(counts)}q", *counts) + b"".join(a.tobytes() for a in arrays)
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(library)
            file.flush()
            words = [file.name, symbol, *map(str, (self.threads, *self.sve_bytes))]
            command = [EMULATOR, "-cpu", PROCESSORS[self.target], "-L", _LIBRARIES, _runner()]
            ended = subprocess.run(
                [*command, *words], input=request, capture_output=True, check=False
            )
        assert ended.returncode == 0, (ended.returncode, ended.stderr.decode(errors="replace"))
        (status,) = struct.unpack_from("<q", ended.stdout)
        at = 8
        for array in arrays:
            found = np.frombuffer(ended.stdout, array.dtype, array.size, at)
            array[...] = found.reshape(array.shape)
            at += array.nbytes
        return int(status)


def run_on_arm(
    kernel: Kernel,
    buffers: Mapping[str, np.ndarray],
    sizes: Mapping[str, int] | None = None,
    *,
    process: ArmProcess,
) -> int:
    """Runs a kernel in place on flat arrays; returns the result of its entry point."""
    arrays = [buffers[p.name] for p in kernel.params]
    for array, param in zip(arrays, kernel.params, strict=True):
        assert array.dtype == NUMPY[param.dtype], (param.name, array.dtype)
        assert array.flags.c_contiguous
    values = [(sizes or {})[size.name] for size in kernel.sizes]
    return process.call(stage(built(kernel, process.target), "so"), kernel.name, arrays, values)


@lru_cache(maxsize=1)
def _runner() -> str:
    """The runner's program, compiled once in a process."""
    folder = tempfile.mkdtemp(prefix="kernelfarm-arm-")
    program = Path(folder, "runner")
    # Kernels take functions of the C library and of OpenMP from the program that loads them.
    libraries = ["-Wl,--no-as-needed", "-lm", "-fopenmp"]
    command = [COMPILER, "-O2", str(_SOURCE), "-o", str(program), *libraries]
    subprocess.run(command, check=True, capture_output=True)
    return str(program)
