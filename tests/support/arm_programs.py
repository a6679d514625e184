"""Whole plans whose kernels QEMU runs on an Arm processor; the framework's steps run here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.contract import BoundKernel, LaunchCall
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.arm_emulator import ArmProcess
from tests.support.compiled_kernels import built, stage
from tests.support.traced_graphs import capturing


class EmulatedKernel:
    """A kernel for an Arm target, as a loader of its device would give it."""

    def __init__(self, kernel: Kernel, target: str) -> None:
        self._kernel = kernel
        self._process = ArmProcess(target, threads=2)
        self._library = stage(built(kernel, target), "so")

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        """The kernel for these values of its sizes."""
        params, names = self._kernel.params, [size.name for size in self._kernel.sizes]
        values = dict(zip(names, sizes, strict=True))
        counts = [p.size_elems.evaluate(values) * p.dtype.itemsize_bytes for p in params]

        def bound(buffers: int, _threads: int) -> LaunchCall:
            table = (ctypes.c_void_p * max(len(params), 1)).from_address(buffers)

            def launch() -> int:
                places = [
                    (ctypes.c_uint8 * count).from_address(at)
                    for at, count in zip(table, counts, strict=False)
                ]
                copies = [np.array(place) for place in places]
                status = self._process.call(self._library, self._kernel.name, copies, sizes)
                for place, copy in zip(places, copies, strict=True):
                    np.copyto(np.frombuffer(place, np.uint8), copy)
                return status

            return launch

        return bound


def compiled_for_arm(function: Callable[..., Any], target: str) -> Callable[..., Any]:
    """The function by kernels for an Arm target, also its products of matrices."""
    facts = target_facts(target)

    def compiler(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., Any]:
        lowered = decompose_to_prims(captured.graph, max_sorted_elems=facts.max_sorted_elems)
        program = optimize(lowered.graph, facts, ProductChoice.OWN).program
        verify_program(program)
        kernels = tuple((LoadedVariant((), EmulatedKernel(k, target)),) for k in program.kernels)
        runner = PlanRunner(BoundProgram(program.plan, kernels, captured, CpuLoader()))
        return lambda *given: runner(list(given))

    torch._dynamo.reset()
    return torch.compile(function, backend=capturing(compiler))
