"""A device without hardware: functions stand in for binaries, and a simulated clock is its timer.

An autotuned kernel of three configurations runs there, and each launch takes a stated time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kernelfarm.client.loaders.contract import LaunchCall, LaunchTimer
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.triton.user_kernel import FixedParam, UserKernel
from tests.support.user_kernel_stand_ins import CompiledHere, StandIn

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=block // 32) for block in (32, 64, 128)]


def _source(sum_ptr, x_ptr, n, m, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(sum_ptr + at, tl.load(sum_ptr + at, mask=at < n) + x, mask=at < n)


add_to = triton.jit(_source)
tuned = triton.autotune(configs=CONFIGS, key=["n"], restore_value=["sum_ptr"])(add_to)


class SimulatedDevice:
    """A loader and timer of a device whose launches take stated times.

    `costs_ms` has the time of a launch by the kernel's block; `refused` are blocks that the device
    does not launch.
    """

    def __init__(self, costs_ms: dict[int, float], refused: Sequence[int] = ()) -> None:
        self.costs_ms, self.refused = costs_ms, refused
        self.block = ""
        self.elapsed_ms = 0.0
        self.launched: list[int] = []
        self.seen: list[float] = []

    def stands_in(self, kernel: UserKernel) -> LoadedVariant:
        """The stand-in for a kernel: it adds like the kernel does, and takes its time."""
        (block,) = (
            int(str(param.value))
            for param in kernel.params
            if isinstance(param, FixedParam) and param.name == "BLOCK"
        )

        def add(pointers: Sequence[int], sizes: Sequence[int]) -> None:
            n, *_, extent, _, _ = sizes
            assert extent == -(-n // block)  # the grid of this configuration
            total, x = (_floats(pointer, n) for pointer in pointers)
            self.seen.append(float(total[0]))
            self.launched.append(block)
            self.elapsed_ms += self.costs_ms[block]
            total += x

        return LoadedVariant((), _Refusing(StandIn(add), block in self.refused))

    def device(self) -> str:
        return "a simulated device"

    def obstacle(self) -> str:
        return self.block

    def times_ms(
        self, launch: Callable[[], None], prepare: Callable[[], None], count: int
    ) -> list[float]:
        times = []
        for _ in range(count):
            prepare()
            self.elapsed_ms = 0.0
            launch()
            times.append(self.elapsed_ms)
        return times


class _Refusing:
    """A stand-in whose launches return a status, if the device refuses them."""

    def __init__(self, kernel: StandIn, is_refused: bool) -> None:
        self._kernel, self._is_refused = kernel, is_refused

    def bind(self, sizes: tuple[int, ...]) -> Callable[[int, int], LaunchCall]:
        if self._is_refused:
            return lambda table, stream: lambda: 9
        return self._kernel.bind(sizes)


class _Loader(CpuLoader):
    """The CPU's loader with a timer, for a device of its own."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self._device = device

    def timer(self) -> LaunchTimer:
        return self._device

    def failed(self, status: int, launch: LaunchCall, name: str) -> None:
        raise UnavailableError(f"launch of {name}: status {status}")


def _floats(address: int, count: int) -> np.ndarray[Any, Any]:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (count,))


def compiled_for(
    function: Callable[..., Any], device: SimulatedDevice, **more: Any
) -> CompiledHere:
    return CompiledHere(function, stands_in=device.stands_in, loader=_Loader(device), **more)


def grid_of(n: int) -> Callable[[dict[str, int]], tuple[int]]:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x * 2
    tuned[grid_of(x.numel())](total, y, x.numel(), 7)
    return total
