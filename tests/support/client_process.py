"""The state of a new client process, within this one: empty memory, and a disk tier."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm import access as farm_access
from kernelfarm.client.farm import invalidation_watch
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs import kernels
from kernelfarm.client.programs.loaded import LoadedProgram
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import client_settings
from tests.support.farm import TIMEOUT_S


@dataclass
class NewProcess:
    """A client without programs in memory; only one may exist at a time."""

    access: FarmAccess
    store: ProgramStore = field(default_factory=ProgramStore)

    def program(self, captured: CapturedGraph) -> LoadedProgram:
        support = device_support(captured.device)
        return self.store.program(self.access, captured, support, CompileOptions())

    def run(self, captured: CapturedGraph, *args: torch.Tensor) -> list[Any]:
        support = device_support(captured.device)
        program = self.program(captured).for_graph(captured, support.loader)
        return PlanRunner(program)(list(args))


def new_process(endpoint: str, folder: Path, **settings: object) -> NewProcess:
    """Drops all programs and watches of this process, and resets its counters."""
    for watch in invalidation_watch._watches.values():
        watch.close()
    invalidation_watch._watches.clear()
    kernels._kernels.clear()
    farm_access._failures.clear()
    counters.reset()
    stated = {"endpoint": endpoint, "disk_cache_dir": folder, "timeout_s": TIMEOUT_S, **settings}
    return NewProcess(FarmAccess(client_settings(**stated)))
