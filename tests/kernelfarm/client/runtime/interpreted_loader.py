"""A loader whose kernels run in NumPy on the real pointer tables: the launch contract, no compiler.

A binary is the kernel's name; `kernels` holds what to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from kernelfarm.client.loaders.contract import BoundKernel, LaunchCall, LoadedKernel, raise_for
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Kernel
from tests.support.launch_buffers import buffers_at


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

    def failed(self, status: int, _launch: LaunchCall, name: str) -> None:
        raise_for(status, name)

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
            run_kernel(kernel, buffers_at(table, kernel, named), named)
            return self._loader.statuses.get(self._name, 0)

        return lambda table, context: partial(launch, table)
