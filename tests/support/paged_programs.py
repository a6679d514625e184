"""Programs of attention over keys and values in pages, whose templates an interpreter runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.paged_attention import PagedForm
from tests.support.template_kernels import UNITS, as_array, constant, interpreted, templates
from tests.support.traced_graphs import capturing

TARGET = target_facts("cuda:sm_90a")


def optimized(captured: CapturedGraph) -> OptimizeResult:
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
    found = optimize(lowered.graph, TARGET)
    verify_program(found.program)
    return found


class Runs:
    """A function computed by programs for the target, whose templates an interpreter runs."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.programs: list[OptimizeResult] = []
        torch._dynamo.reset()
        self._compiled = torch.compile(function, backend=capturing(self._compile))

    def result(self, *operands: Tensor) -> Tensor:
        """The result of a program; inputs that it updates have what it stores in them."""
        found: Tensor = self._compiled(*operands)
        return found.double()

    def _compile(self, captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        found = optimized(captured)
        self.programs.append(found)

        def run(*given: Any) -> object:
            sources = [given[s] for s in captured.sources if isinstance(s, int)]
            inputs = [as_array(g) if isinstance(g, Tensor) else g for g in sources]
            results = run_program(found.program, inputs, run_template=interpreted)
            made = [torch.tensor(np.asarray(result, np.float32)) for result in results]
            for update in captured.graph.updates:
                sources[update.input].copy_(made[update.output])
            updated = {update.output for update in captured.graph.updates}
            return [result for number, result in enumerate(made) if number not in updated]

        return run


def compare(
    form: PagedForm, result: Tensor, function: Callable[..., Tensor], operands: Sequence[Tensor]
) -> None:
    """Checks that a result is that of eager in float64."""
    exact = function(*(x.double() if x.is_floating_point() else x for x in operands))
    # Shares are rounded to the type of the values, as the framework's kernels do.
    allowed = 4 * UNITS[form.dtype] * exact.abs().max()
    assert (result - exact).abs().max() <= allowed


def right_program(
    form: PagedForm, operands: Sequence[Tensor], function: Callable[..., Tensor] | None = None
) -> OptimizeResult:
    """The program of a form, without gathers, whose results are those of eager in float64."""
    function = function or form.attend
    runs = Runs(function)
    compare(form, runs.result(*operands), function, operands)
    (found,) = runs.programs
    assert not any("gather" in kernel.name for kernel in found.program.kernels)
    return found


def paged_kernel(found: OptimizeResult, entry: str) -> UserKernel:
    """The only template kernel, which reads pages; the framework computes nothing."""
    (kernel,) = templates(found.program)
    assert kernel.entry == entry
    assert constant(kernel, "PAGE")
    assert not any(isinstance(step, ExternCall) for step in found.program.plan.steps)
    return kernel
