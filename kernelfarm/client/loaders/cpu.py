"""Loads CPU kernels, which are shared libraries, into this process.

A library is loaded only if it is for this processor, loads no other library, runs no code at load
time, and imports only symbols of a closed list. It is loaded from anonymous memory.

Kernels use the OpenMP runtime that the process has loaded (PyTorch loads libgomp). Without one, the
loader searches for libgomp.so.1; without that, kernels run on the calling thread. They also run on
the calling thread in a child forked from a process with kernels: it lacks the runtime's threads,
and the runtime would wait for them forever.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import tempfile
import threading
import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from kernelfarm.client.loaders.contract import BoundKernel, LaunchCall, raise_for
from kernelfarm.client.loaders.host_target import (
    host_cpu_target,
    host_flags,
    this_processor,
)
from kernelfarm.client.loaders.kernel_library import (
    LIBM_SYMBOLS,
    OPENMP_SYMBOLS,
    check_library,
)
from kernelfarm.client.loaders.sve_length import sve_vector_bytes
from kernelfarm.errors import MalformedMessageError, UnavailableError
from kernelfarm.ir.artifact import LaunchFacts

ABI: Final = "kf-cpu-1"
_load_numbers = itertools.count()


class ForkWarning(UserWarning):
    """Kernels run on one thread because this process is a forked child."""


class _Forked:
    """Whether this process was forked from one that had loaded kernels."""

    def __init__(self) -> None:
        self.is_child = False
        self._is_watched = False
        self._has_warned = False

    def watch(self) -> None:
        """Marks later forked children."""
        if not self._is_watched:
            self._is_watched = True
            os.register_at_fork(after_in_child=self._in_child)

    def one_thread(self) -> int:
        """The number of threads in a forked child, 1; warns at the first call."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(_FORK_ADVICE, ForkWarning, stacklevel=2)
        return 1

    def _in_child(self) -> None:
        self.is_child = True


_FORK_ADVICE: Final = (
    "kernelfarm: this process was forked from a process that had loaded kernels, so kernels run on "
    "one thread here. torch's own operators may hang after such a fork: start workers by spawn, or "
    "call torch.set_num_threads(1) before the fork"
)
_forked = _Forked()


class CpuKernel:
    """One loaded kernel; threads may share it. Its library stays loaded."""

    def __init__(self, library: ctypes.CDLL, symbol: str, size_count: int) -> None:
        entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        self._entry = entry((symbol, library))
        self._library = library
        self._size_count = size_count

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        """The kernel for these values of its sizes.

        Raises:
            MalformedMessageError: the number of sizes is not the binary's.
        """
        if len(sizes) != self._size_count:
            raise MalformedMessageError(
                f"the kernel takes {self._size_count} sizes, got {len(sizes)}"
            )
        entry, table = self._entry, (ctypes.c_int64 * max(len(sizes), 1))(*sizes)

        def bound(buffers: int, threads: int) -> LaunchCall:
            # Objects that ctypes need not convert at a launch; `byref` holds a reference.
            buffers_at = ctypes.c_void_p.from_param(buffers)
            return partial(entry, buffers_at, ctypes.byref(table), threads)

        return bound


class CpuLoader:
    """Loads kernels for this machine's processor; the same binary is loaded once."""

    def __init__(self) -> None:
        self._libraries: dict[bytes, ctypes.CDLL] = {}
        self._lock = threading.Lock()

    def load(self, binary: bytes, launch: LaunchFacts) -> CpuKernel:
        """The kernel of a shared library.

        Raises:
            MalformedMessageError: the bytes are not a shared library for this machine, or the
                library does something that kernels must not do.
            UnavailableError: this processor lacks a feature, or the system refused to load it.
        """
        extras = dict(launch.extras)
        if extras.get("abi") != ABI:
            raise MalformedMessageError(
                f"expected a CPU binary of interface {ABI}, got {extras.get('abi')!r}"
            )
        missing = sorted(set(extras.get("cpu_flags", "").split()) - host_flags())
        if missing:
            raise UnavailableError(
                f"this processor lacks {', '.join(missing)}; compile for {host_cpu_target()}"
            )
        _require_vectors(extras.get("sve_bytes"))
        digest = hashlib.sha256(binary).digest()
        with self._lock:
            library = self._libraries.get(digest)
            if library is None:
                processor = this_processor()
                facts = check_library(binary, processor.elf_machine, processor.name)
                _forked.watch()
                library = self._libraries[digest] = _open_library(binary, facts.undefined)
        try:
            return CpuKernel(library, launch.symbol, launch.arguments.count("size"))
        except AttributeError as error:
            raise MalformedMessageError(f"the library has no function {launch.symbol!r}") from error

    def failed(self, status: int, _launch: LaunchCall, name: str) -> None:
        """Raises the error of a kernel's status."""
        raise_for(status, name)

    def context(self) -> int:
        """The number of threads of the OpenMP runtime, set by `torch.set_num_threads`."""
        if _forked.is_child:
            return _forked.one_thread()
        runtime = openmp_runtime()
        return 1 if runtime is None else int(runtime.omp_get_max_threads())


def _require_vectors(stated: str | None) -> None:
    """Checks the length of SVE vectors that a kernel was compiled for; None: it uses none.

    Raises:
        UnavailableError: this thread has vectors of another length, or none.
    """
    if stated is None:
        return
    found = sve_vector_bytes()
    if stated == str(found):
        return
    raise UnavailableError(
        f"the kernel needs SVE vectors of {stated} bytes, and this thread has {found or 'none'};"
        f" compile for {host_cpu_target()}"
    )


def _open_library(binary: bytes, undefined: frozenset[str]) -> ctypes.CDLL:
    if undefined & OPENMP_SYMBOLS:
        openmp_runtime()
    if undefined & LIBM_SYMBOLS:
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    try:
        return _open_from_memory(binary)
    except OSError:
        # Some hardened systems forbid code from anonymous memory, but allow it from a file.
        return _open_from_file(binary)


def _open_from_memory(binary: bytes) -> ctypes.CDLL:
    descriptor = os.memfd_create("kernelfarm-kernel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(binary)
        return ctypes.CDLL(_unique_path(descriptor, next(_load_numbers)), mode=os.RTLD_NOW)
    finally:
        os.close(descriptor)


def _unique_path(descriptor: int, number: int) -> str:
    """A path to an open file that differs from the paths of all earlier loads.

    The dynamic linker treats equal paths as the same library, and descriptors are reused. So the
    load number is encoded in redundant slashes and dots of the path.
    """
    spelled = "".join("/." if bit == "1" else "/" for bit in f"{number:b}")
    return f"/proc/self/fd{spelled}/{descriptor}"


def _open_from_file(binary: bytes) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="kernelfarm-") as folder:
        path = Path(folder, f"kernel-{next(_load_numbers)}.so")
        path.write_bytes(binary)
        try:
            return ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        except OSError as error:
            raise UnavailableError(f"the system refused to load a kernel: {error}") from error


@lru_cache(maxsize=1)
def openmp_runtime() -> ctypes.CDLL | None:
    """The OpenMP runtime, with its symbols made visible to kernels; None if there is none."""
    process = ctypes.CDLL(None)
    if hasattr(process, "GOMP_parallel"):
        return process
    for path in (*_loaded_runtimes(), "libgomp.so.1"):
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def _loaded_runtimes() -> list[str]:
    """The paths of the mapped OpenMP runtimes that have GNU's interface."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")}
    return sorted(p for p in paths if Path(p).name.startswith(("libgomp", "libiomp5", "libomp")))
