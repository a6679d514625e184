"""A loader whose kernels run in NumPy on the real pointer tables: the launch contract, no compiler.

A binary is the kernel's name; `kernels` holds what to run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from kernelfarm.client.loaders.contract import BoundKernel, LoadedKernel
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.interpret import numpy_dtype, run_kernel
from kernelfarm.ir.loop_ir import Kernel


class InterpretedLoader:
    """Kernels by name; `launches` counts what ran, `statuses` makes a kernel fail."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self.kernels = kernels
        self.launches: list[str] = []
        self.statuses: dict[str, int] = {}

    def load(self, binary: bytes, launch: LaunchFacts) -> LoadedKernel:
        name = binary.decode()
        if name not in self.kernels:
            raise MalformedMessageError(f"no kernel {name}")
        return _Interpreted(self, name)

    def context(self) -> int:
        return torch.get_num_threads()


class _Interpreted:
    def __init__(self, loader: InterpretedLoader, name: str) -> None:
        self._loader, self._name = loader, name
        self._kernel = loader.kernels[name]

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        kernel = self._kernel
        named = {s.name: value for s, value in zip(kernel.sizes, sizes, strict=True)}

        def launch(table: int) -> int:
            self._loader.launches.append(self._name)
            pointers = (ctypes.c_uint64 * len(kernel.params)).from_address(table)
            buffers = {
                param.name: _array(pointer, param.size_elems.evaluate(named), param.dtype)
                for param, pointer in zip(kernel.params, pointers, strict=True)
            }
            run_kernel(kernel, buffers, named)
            return self._loader.statuses.get(self._name, 0)

        return lambda table, context: partial(launch, table)


def _array(address, count, dtype):
    kind = numpy_dtype(dtype)
    raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)
