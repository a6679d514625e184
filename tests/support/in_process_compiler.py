"""All stages of the farm in this process: turns captured graphs into callables, without servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from codegen_svc.backends.cpu.backend import BACKEND
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.loaders.cpu import CpuKernel, CpuLoader
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.results import module_outputs
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.digest import kernel_key
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import DrawSeeds, ExternCall, Launch, Plan
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import TargetFacts, target_facts
from optimizer_svc.pipeline import optimize
from tests.support.captured_graphs import run_lowered
from tests.support.traced_graphs import capturing


@dataclass(slots=True)
class Counts:
    """How many kernels and extern steps the plans of a sample have."""

    graphs: int = 0
    nodes: int = 0
    launches: int = 0
    draws: int = 0
    externs: list[str] = field(default_factory=list)

    def add(self, captured: CapturedGraph, plan: Plan) -> None:
        """Adds the steps of one compiled graph."""
        self.graphs += 1
        self.nodes += len(captured.nodes)
        self.launches += sum(isinstance(step, Launch) for step in plan.steps)
        self.draws += sum(isinstance(step, DrawSeeds) for step in plan.steps)
        self.externs += [step.op for step in plan.steps if isinstance(step, ExternCall)]


Compile = Callable[[CapturedGraph, Counts], Callable[[Sequence[Any]], list[Any]]]
"""Turns a captured graph into a callable, and counts its steps."""

_loader = CpuLoader()
_kernels: dict[bytes, CpuKernel] = {}


def compile_here(
    captured: CapturedGraph, counts: Counts, facts: TargetFacts | None = None
) -> PlanRunner:
    """Compiles a graph for this machine's processor, all stages in this process.

    `facts` are other facts about it, on which the program's form depends.
    """
    target = facts or target_facts(host_cpu_target())
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=target.max_sorted_elems)
    program = optimize(lowered.graph, target).program
    verify_program(program)
    counts.add(captured, program.plan)
    kernels = tuple(
        (LoadedVariant((), loaded_kernel(kernel, target.name)),) for kernel in program.kernels
    )
    return PlanRunner(BoundProgram(program.plan, kernels, captured, _loader))


def compiled_for(
    function: Callable[..., Any], facts: TargetFacts, counts: Counts
) -> Callable[..., Any]:
    """The function, compiled by Dynamo and all stages for facts of this machine's processor."""

    def compiler(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., Any]:
        run = compile_here(captured, counts, facts)
        return lambda *given: run(list(given))

    torch._dynamo.reset()
    return torch.compile(function, backend=capturing(compiler))


def interpret_here(captured: CapturedGraph, counts: Counts) -> Callable[[Sequence[Any]], list[Any]]:
    """Evaluates the Prims of a graph in NumPy, with the seeds that a plan would draw."""
    lowered = decompose_to_prims(captured.graph)
    handed_out = module_outputs(captured, {}) or (lambda outputs, args: outputs)
    return lambda args: handed_out(run_lowered(captured, lowered, args), args)


def loaded_kernel(kernel: Kernel, target: str) -> CpuKernel:
    """The kernel, compiled and loaded once in this process."""
    # The symbol is part of the binary, and kernels with equal keys may have different names.
    key = kernel_key(kernel, target) + kernel.name.encode()
    if key not in _kernels:
        (built,) = BACKEND.build(kernel, target_facts(target))
        binary = next(s.content for s in built.stages if s.name == built.binary_stage)
        _kernels[key] = _loader.load(binary, built.launch)
    return _kernels[key]


def compiled_here(function: Callable[..., Any]) -> tuple[Callable[..., Any], Counts]:
    """The function compiled by AOT Autograd and all stages, and the counts of its graphs so far."""
    counts = Counts()

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with unset_fake_temporarily():
            runner = compile_here(capture(gm), counts)
        return make_boxed_func(lambda *args: runner(args))

    return aot_function(function, fw_compiler=compiler), counts
