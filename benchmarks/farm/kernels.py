"""Distinct kernels of real models, as jobs of the edge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from examples.model_zoo import model_of
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.digest import kernel_digest
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import target_facts
from kernelfarm.wire import kernel_to_proto
from optimizer_svc.pipeline import optimize
from tests.support.traced_graphs import recording

# Sizes stay multiples of 16, which decides how Triton addresses a buffer.
_STEP_ELEMS = 16


class Captures:
    """Graphs of models, each captured once."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = models

    @cached_property
    def graphs(self) -> list[CapturedGraph]:
        """The graphs of one forward pass of each model."""
        found: list[CapturedGraph] = []
        for name in self._models:
            source = model_of(name, torch.float32)
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(source.model, backend=recording(found, runs=False))(*source.args)
        return found

    def kernels(self, target: str) -> list[Kernel]:
        """The distinct kernels of all graphs for a target, in the order of their first use."""
        facts = target_facts(target)
        found: dict[bytes, Kernel] = {}
        for captured in self.graphs:
            lowered = decompose_to_prims(captured.graph, max_sorted_elems=facts.max_sorted_elems)
            for kernel in optimize(lowered.graph, facts).program.kernels:
                found.setdefault(kernel_digest(kernel), kernel)
        return list(found.values())


def distinct(kernels: Sequence[Kernel]) -> Iterator[loops_pb2.Kernel]:
    """Endless kernels with keys of their own; each round of all takes the same work.

    After the first round, the first buffer has some elements more than the kernel uses.
    """
    for number in itertools.count():
        for kernel in kernels:
            first, *rest = kernel.params
            longer = replace(first, size_elems=first.size_elems + _STEP_ELEMS * number)
            yield kernel_to_proto(replace(kernel, params=(longer, *rest)))
