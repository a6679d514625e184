"""A RISC-V processor that QEMU emulates: a process which loads and launches kernels.

`runner.c` is the program that it runs; this module starts it and speaks with it.
"""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

from kernelfarm.errors import InternalError, MalformedMessageError, UnavailableError

EMULATOR, COMPILER = "qemu-riscv64", "riscv64-linux-gnu-gcc"
REMEDY = "apt-get install qemu-user gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"
# Where Debian's cross compiler keeps the C library of RISC-V programs.
_LIBRARIES = "/usr/riscv64-linux-gnu"
# Version 1.0 of the vector instructions, and conversions of f16 under their new and old name.
_PROCESSORS = ("rv64,v=true,vext_spec=v1.0,zfhmin=true", "rv64,v=true,vext_spec=v1.0,Zfhmin=true")
_LOAD, _LAUNCH, _REFUSED = 1, 2, -1
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of the client that a launch needs, in bytes; buffers that overlap share a region."""

    address: int
    size_bytes: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A launch: its regions, a region's number and an offset for each buffer, and the sizes."""

    kernel: int
    regions: tuple[Region, ...]
    buffers: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A kernel's status, and the new contents of regions by their number."""

    status: int
    changed: dict[int, bytes]


class Emulator:
    """One emulated processor with vector registers of `vector_bits`; threads may share it.

    Raises:
        UnavailableError: QEMU or the cross compiler is missing, or QEMU is too old.
    """

    def __init__(self, vector_bits: int) -> None:
        _require_tools()
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="kernelfarm-riscv-")
        self._numbers = itertools.count()
        command = _command(self._runner(), vector_bits)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """Ends the process: the runner returns at the end of its input."""
        with self._lock:
            self._process.communicate()
        self._folder.cleanup()

    def load(self, library: bytes, symbol: str) -> int:
        """The number of a kernel for launches.

        Raises:
            MalformedMessageError: the library has no such function, or cannot be loaded.
            InternalError: the emulator has ended.
        """
        path = Path(self._folder.name, f"kernel-{next(self._numbers)}.so")
        path.write_bytes(library)
        names = str(path).encode(), symbol.encode()
        with self._lock:
            self._send(_numbers(_LOAD, *map(len, names)), *names)
            kernel = self._receive_number()
            if kernel != _REFUSED:
                return kernel
            message = self._receive(self._receive_number()).decode(errors="replace")
        raise MalformedMessageError(f"the emulated processor cannot load {symbol}: {message}")

    def launch(self, request: Request) -> Answer:
        """Runs a kernel on one thread.

        Raises:
            InternalError: the emulator has ended, for example because the kernel crashed.
        """
        regions, buffers, sizes = request.regions, request.buffers, request.sizes
        header = [_LAUNCH, request.kernel, len(regions), len(buffers), len(sizes), 1]
        for region in regions:
            header += (region.size_bytes, region.address % _PAGE_BYTES)
        header += itertools.chain(*buffers)
        with self._lock:
            self._send(_numbers(*header, *sizes), *(region.content for region in regions))
            status = self._receive_number()
            changed = {
                number: self._receive(region.size_bytes)
                for number, region in enumerate(regions)
                if self._receive_number()
            }
        return Answer(status, changed)

    def _runner(self) -> Path:
        """The runner's program, compiled.

        Raises:
            InternalError: the compiler refuses the runner.
        """
        program = Path(self._folder.name, "runner")
        source = resources.files(__package__) / "runner.c"
        # Kernels take the C library's functions from the program that loads them.
        command = [COMPILER, "-O2", "-x", "c", "-", "-o", str(program), "-Wl,--no-as-needed", "-lm"]
        ended = subprocess.run(command, input=source.read_bytes(), capture_output=True, check=False)
        if ended.returncode:
            raise InternalError(f"{COMPILER} refused runner.c: {ended.stderr.decode()[-2000:]}")
        return program

    def _send(self, *parts: bytes) -> None:
        try:
            for part in parts:
                self._stream(self._process.stdin).write(part)
            self._stream(self._process.stdin).flush()
        except OSError as error:
            raise self._ended() from error

    def _receive_number(self) -> int:
        (number,) = struct.unpack("<q", self._receive(8))
        return int(number)

    def _receive(self, size_bytes: int) -> bytes:
        found = self._stream(self._process.stdout).read(size_bytes)
        if len(found) != size_bytes:
            raise self._ended()
        return found

    def _stream(self, stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise InternalError("the emulator was started without pipes")
        return stream

    def _ended(self) -> InternalError:
        return InternalError(
            f"the emulated RISC-V processor has ended with status {self._process.wait()}; start"
            " the program again, and report the kernel if it ends again"
        )


def _require_tools() -> None:
    for tool in (EMULATOR, COMPILER):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} is missing, which runs RISC-V kernels: {REMEDY}")


def _command(runner: Path, vector_bits: int) -> list[str]:
    """The command that starts the runner; QEMU's versions name one extension differently.

    Raises:
        UnavailableError: QEMU knows none of the processors.
    """
    for processor in _PROCESSORS:
        emulated = ["-cpu", f"{processor},vlen={vector_bits}", "-L", _LIBRARIES]
        command = [EMULATOR, *emulated, str(runner)]
        # The runner ends at once, because its input is empty.
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if ended.returncode == 0:
            return command
    message = ended.stderr.decode(errors="replace")[-500:]
    raise UnavailableError(
        f"{EMULATOR} cannot emulate a processor with vectors of {vector_bits} bits: {message};"
        " QEMU 7.2 and later can"
    )


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Address ranges (begin, end) that cover the given ones and do not overlap, in order.

    Example:
        >>> merged([(0, 8), (4, 12), (16, 20)])
        [(0, 12), (16, 20)]
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
