"""Loads RISC-V kernels for tensors in this machine's memory, and runs them by emulation.

Set `KERNELFARM_HOST_TARGET=riscv:rv64gcv`; then `torch.compile(model, backend="kernelfarm")` runs a
model's kernels by QEMU. It is slow, and shows that the code is right.
"""

from __future__ import annotations

import atexit
import bisect
import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial

import torch

from kernelfarm.client.loaders.contract import BoundKernel, DeviceSupport, LaunchCall, raise_for
from kernelfarm.client.loaders.kernel_library import check_library
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.text import parse_expr
from kernelfarm.targets import ProcessorFacts, target_facts
from riscv_vendor.emulator import Emulator, Region, Request, merged


def support(device: torch.device, requested: str) -> DeviceSupport | None:
    """The requested target and its emulated processor, for tensors in this machine's memory.

    Raises:
        UnknownTargetError: there is no such target.
    """
    if device.type != "cpu" or not requested.startswith("riscv:"):
        return None
    return DeviceSupport(requested, EmulatedLoader(target_facts(requested).section(ProcessorFacts)))


class EmulatedLoader:
    """Loads kernels into the process's emulated processor, which starts with the first kernel."""

    def __init__(self, facts: ProcessorFacts) -> None:
        self._facts = facts

    def load(self, binary: bytes, launch: LaunchFacts) -> EmulatedKernel:
        """The kernel of a shared library.

        Raises:
            MalformedMessageError: the bytes are not a shared library for RISC-V, or the library
                does something that kernels must not do.
            UnavailableError: QEMU or the compiler of its runner is missing.
        """
        check_library(binary, self._facts.elf_machine, "RISC-V")
        emulator = _emulator(8 * self._facts.vector_bytes)
        return EmulatedKernel(emulator, emulator.load(binary, launch.symbol), _buffer_bytes(launch))

    def failed(self, status: int, _launch: LaunchCall, name: str) -> None:
        """Raises the error of a kernel's status."""
        raise_for(status, name)

    def context(self) -> int:
        """The number of threads, 1: the runner has no OpenMP runtime."""
        return 1


class EmulatedKernel:
    """One loaded kernel; threads may share it."""

    def __init__(self, emulator: Emulator, number: int, buffer_bytes: tuple[Expr, ...]) -> None:
        self._emulator, self._number, self._buffer_bytes = emulator, number, buffer_bytes

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        """The kernel for these values of its sizes."""
        named = {f"s{number}": value for number, value in enumerate(sizes)}
        sizes_bytes = [expr.evaluate(named) for expr in self._buffer_bytes]
        return lambda table, _context: partial(self._launch, sizes, sizes_bytes, table)

    def _launch(self, sizes: tuple[int, ...], sizes_bytes: Sequence[int], table: int) -> int:
        addresses = list((ctypes.c_uint64 * len(sizes_bytes)).from_address(table))
        pairs = zip(addresses, sizes_bytes, strict=True)
        ranges = merged([(address, address + size_bytes) for address, size_bytes in pairs])
        regions = tuple(
            Region(begin, end - begin, ctypes.string_at(begin, end - begin))
            for begin, end in ranges
        )
        begins = [region.address for region in regions]
        buffers = []
        for address in addresses:
            region = bisect.bisect_right(begins, address) - 1
            buffers.append((region, address - begins[region]))
        request = Request(self._number, regions, tuple(buffers), sizes)
        answer = self._emulator.launch(request)
        for number, content in answer.changed.items():
            ctypes.memmove(begins[number], content, len(content))
        return answer.status


@lru_cache(maxsize=1)
def _emulator(vector_bits: int) -> Emulator:
    started = Emulator(vector_bits)
    atexit.register(started.close)
    return started


def _buffer_bytes(launch: LaunchFacts) -> tuple[Expr, ...]:
    """The sizes of the buffers in bytes, as the backend stated them."""
    extras = dict(launch.extras)
    names = [f"buffer_{number}_bytes" for number in range(launch.arguments.count("buffer"))]
    missing = [name for name in names if name not in extras]
    if missing:
        raise MalformedMessageError(
            f"kernel {launch.symbol} does not state {missing[0]}; compile it with this version of"
            " kernelfarm-riscv"
        )
    return tuple(parse_expr(extras[name]) for name in names)
