"""The same by a running farm: slower, and the whole path."""

from __future__ import annotations

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import client_settings
from tests.support.in_process_compiler import Compile, Counts


def compile_by(endpoint: str) -> Compile:
    """A compiler that asks the farm at an endpoint."""
    access = FarmAccess(client_settings(endpoint=endpoint))
    store = ProgramStore()

    def compile_there(captured: CapturedGraph, counts: Counts) -> PlanRunner:
        support = device_support(captured.device)
        shared = store.program(access, captured, support, CompileOptions())
        counts.add(captured, shared.plan)
        return PlanRunner(shared.for_graph(captured, support.loader))

    return compile_there
