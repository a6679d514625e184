"""A loader that runs the Linalg text of Ascend stubs on this CPU."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from kernelfarm.client.loaders.contract import BoundKernel, LaunchCall, raise_for
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.loop_ir import Kernel
from tests.support.launch_buffers import buffers_at
from tests.support.linalg_cpu import call_linalg, load_linalg


class LinalgLoader:
    """Loads stubs; `kernels` by name have the element types and sizes of their buffers."""

    def __init__(self, kernels: Mapping[str, Kernel], folder: Path) -> None:
        self._kernels, self._folder = kernels, folder
        self.launches: list[str] = []

    def load(self, binary: bytes, launch: LaunchFacts) -> _LinalgKernel:
        section = ELFFile(io.BytesIO(binary)).get_section_by_name(".kernelfarm.linalg")
        folder = self._folder / str(len(list(self._folder.iterdir())))
        folder.mkdir()
        function = load_linalg(section.data().decode(), launch.symbol, folder)
        return _LinalgKernel(self._kernels[launch.symbol], function, launch, self.launches)

    def failed(self, status: int, _launch: LaunchCall, name: str) -> None:
        raise_for(status, name)

    def context(self) -> int:
        return 1


class _LinalgKernel:
    def __init__(
        self, kernel: Kernel, function: Any, launch: LaunchFacts, launches: list[str]
    ) -> None:
        self._kernel, self._function, self._facts = kernel, function, launch
        self._launches = launches

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        named = {s.name: value for s, value in zip(self._kernel.sizes, sizes, strict=True)}

        def launch(table: int) -> int:
            self._launches.append(self._kernel.name)
            buffers = list(buffers_at(table, self._kernel, named).values())
            call_linalg(self._function, self._facts, buffers, named)
            return 0

        return lambda table, context: partial(launch, table)
