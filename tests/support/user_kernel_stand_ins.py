"""Models with Triton kernels of users that run without a GPU: functions stand in for binaries.

A stand-in gets what a driver would get, the addresses and sizes of a launch. All other code is that
of clients and services.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.loaders.contract import LaunchCall, Loader
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import DEFAULT_TUNING, BoundProgram, TuningPolicy
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.program_ir import Plan
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP, UserKernel
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.in_process_compiler import loaded_kernel
from tests.support.triton_without_gpu import as_with_a_gpu


def user_kernel_node(captured: CapturedGraph) -> Node:
    """The only node of a graph that is a kernel of the user."""
    (node,) = (node for node in captured.graph.nodes if node.op == USER_KERNEL_OP)
    return node


class StandIn:
    """A loaded kernel whose launches call a function; `uses` has their pointers and sizes."""

    def __init__(
        self, meaning: Callable[[Sequence[int], Sequence[int]], None], count: int = 2
    ) -> None:
        self._meaning, self._count = meaning, count
        self.uses: list[tuple[list[int], tuple[int, ...]]] = []

    def bind(self, sizes: tuple[int, ...]) -> Callable[[int, int], LaunchCall]:
        """The kernel for these sizes."""

        def bound(table: int, stream: int) -> LaunchCall:
            def launch() -> int:
                pointers = list((ctypes.c_uint64 * self._count).from_address(table))
                self.uses.append((pointers, sizes))
                self._meaning(pointers, sizes)
                return 0

            return launch

        return bound


class CompiledHere:
    """A function compiled in this process; stand-ins launch the kernels of users.

    All kernels have the same variants, or the one that `stands_in` gives for a kernel.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *variants: LoadedVariant,
        stands_in: Callable[[UserKernel], LoadedVariant] | None = None,
        loader: Loader | None = None,
        tuning: TuningPolicy = DEFAULT_TUNING,
    ) -> None:
        self._variants, self._stands_in = variants, stands_in
        self._loader, self._tuning = loader or CpuLoader(), tuning
        self.graphs: list[CapturedGraph] = []
        self.plans: list[Plan] = []
        self.reports: list[str] = []
        self._call = torch.compile(function, backend=self._backend, fullgraph=True)

    def __call__(self, *args: torch.Tensor) -> Any:
        with as_with_a_gpu(), torch.no_grad():
            return self._call(*args)

    def _variants_of(self, kernel: UserKernel) -> tuple[LoadedVariant, ...]:
        return self._variants if self._stands_in is None else (self._stands_in(kernel),)

    def _backend(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(gm, inputs, fw_compiler=self._compile)

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with unset_fake_temporarily():
            captured = capture(gm)
            self.graphs.append(captured)
            target = target_facts(host_cpu_target())
            made = optimize(decompose_to_prims(captured.graph).graph, target)
            self.reports.append(dict(made.stages)["report"])
            verify_program(made.program)
            self.plans.append(made.program.plan)
            kernels = [
                (LoadedVariant((), loaded_kernel(k, target.name)),) for k in made.program.kernels
            ]
            kernels += [self._variants_of(user) for user in made.program.user_kernels]
            bound = BoundProgram(
                made.program.plan, tuple(kernels), captured, self._loader, tuning=self._tuning
            )
            runner = PlanRunner(bound)
        return make_boxed_func(lambda *args: runner(args))
