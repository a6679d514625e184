"""Runs models by frontend, optimizer and NumPy interpreter, and in PyTorch eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.runtime.extern_node import ExternNode
from kernelfarm.ir.interpret import ExternSite, run_program
from kernelfarm.ir.program_ir import ExternCall, Launch
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import OptimizeResult, optimize

TARGET = "cpu:x86-64-v3"


@dataclass
class Traced:
    """All graphs of one run: captured, optimized, and the results of eager and of the program."""

    captured: list[CapturedGraph] = field(default_factory=list)
    optimized: list[OptimizeResult] = field(default_factory=list)
    results: list[tuple[list[Any], list[Any]]] = field(default_factory=list)


def traced(model: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Traced:
    """The graphs of one run of a model. Each graph also runs in the interpreter."""
    found = Traced()

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        captured = capture(gm)
        optimized = optimize(decompose_to_prims(captured.graph).graph, target_facts(TARGET))
        verify_program(optimized.program)
        found.captured.append(captured)
        found.optimized.append(optimized)

        def run(flat: list[Any]) -> Any:
            eager = list(gm.forward(*flat))
            found.results.append((eager, run_optimized(captured, optimized, flat)))
            return eager

        run._boxed_call = True
        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=aot_autograd(fw_compiler=compiler), dynamic=dynamic)(*args)
    return found


def run_optimized(
    captured: CapturedGraph, optimized: OptimizeResult, args: Sequence[Any]
) -> list[Any]:
    """The program's outputs in NumPy. Extern steps run the captured nodes."""
    plan = optimized.program.plan
    inputs = [
        args[s].numpy() if torch.is_tensor(args[s]) else args[s]
        for s in captured.sources
        if isinstance(s, int)
    ]
    held = [s.numpy() for s in captured.sources if not isinstance(s, int)]
    values = {}
    for source in plan.symbols:
        value = inputs[source.input]
        values[source.symbol] = int(value) if source.axis < 0 else value.shape[source.axis]

    def run_extern(site: ExternSite, arrays: list[Any]) -> list[Any]:
        node = ExternNode(captured.nodes[site.node], values)
        # With their strides: some operators rely on a contiguous last axis.
        tensors = [torch.from_numpy(a if a.flags.writeable else np.copy(a)) for a in arrays]
        return [None if r is None else r.numpy() for r in node.run(tensors)]

    return run_program(optimized.program, inputs, run_extern, held)


def launches(optimized: OptimizeResult) -> int:
    """The number of kernel launches, and of extern steps other than products and attention."""
    steps = optimized.program.plan.steps
    return sum(
        isinstance(step, Launch) or (isinstance(step, ExternCall) and not step.is_contraction)
        for step in steps
    )
