"""Attention with its gradients as programs for a GPU, whose template kernels are interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, fx

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import TargetFacts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.attention_forms import TARGET, Form
from tests.support.template_kernels import as_array, interpreted
from tests.support.traced_graphs import capturing

Layer = Callable[..., Tensor]


def optimized(
    captured: CapturedGraph, target: TargetFacts = TARGET, *, needs_fixed_order: bool = False
) -> OptimizeResult:
    lowered = decompose_to_prims(
        captured.graph,
        max_sorted_elems=target.max_sorted_elems,
        needs_fixed_order=needs_fixed_order,
    )
    found = optimize(lowered.graph, target)
    verify_program(found.program)
    return found


def as_tensor(array: Any) -> Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def returned(made: ModuleOutput, results: Sequence[Any], given: Sequence[Any]) -> Any:
    """A value that the traced module returns; sizes do not vary."""
    found = results[made.number] if made.argument is None else given[made.argument]
    found = as_tensor(found) if isinstance(found, np.ndarray) else found
    if made.view is None:
        return found
    sizes = ([n.constant for n in numbers] for numbers in (made.view.shape, made.view.strides))
    return found.as_strided(*sizes, found.storage_offset() + made.view.offset.constant)


def gradients_by(layer: Layer, operands: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """The gradients of query, key and value, and of a mask of numbers."""
    given = [x.detach() for x in operands]
    leaves = [x.requires_grad_() for x in given if x.is_floating_point()]
    return list(torch.autograd.grad(layer(*given), leaves, grad))


def compiled_for_hopper(
    layer: Layer, found: list[OptimizeResult], target: TargetFacts = TARGET
) -> Layer:
    """The function with both passes as programs for a GPU, run by an interpreter."""

    def compile_graph(captured: CapturedGraph, gm: fx.GraphModule) -> Callable[..., object]:
        found.append(optimized(captured, target))
        program = found[-1].program

        def run(*given: Tensor | int) -> object:
            sources = [given[s] for s in captured.sources if isinstance(s, int)]
            inputs = [as_array(g.detach()) if isinstance(g, Tensor) else g for g in sources]
            if any(isinstance(step, ExternCall) for step in program.plan.steps):
                return gm.forward(*given)
            results = run_program(program, inputs, run_template=interpreted)
            return [returned(made, results, given) for made in captured.module_outputs]

        return run

    torch._dynamo.reset()
    compiled: Layer = torch.compile(layer, backend=capturing(compile_graph))
    return compiled


def attended(form: Form) -> Layer:
    """Attention whose result has the heads of a query side by side."""
    return lambda *operands: form.attend(*operands).transpose(1, 2).flatten(2)
