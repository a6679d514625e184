"""Gradients of attention by template kernels, whose sources an interpreter runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, fx

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import TargetFacts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.attention_forms import TARGET, Form, traced_with_gradients
from tests.support.template_kernels import UNITS, as_array, constant, interpreted, templates
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
    """The gradients of query, key and value."""
    given = [x.detach().requires_grad_() for x in operands[:3]]
    return list(torch.autograd.grad(layer(*given, *operands[3:]), given, grad))


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


def check(form: Form, operands: list[Tensor], target: TargetFacts = TARGET) -> list[OptimizeResult]:
    """Compares with gradients in float64; the programs of both passes."""
    layer, found = attended(form), list[OptimizeResult]()
    torch.manual_seed(1)
    grad = torch.randn(form.batch, form.queries, form.heads * form.width).to(form.dtype)
    made = gradients_by(compiled_for_hopper(layer, found, target), operands, grad)
    wide = [x.double() if x.is_floating_point() else x for x in operands]
    for one, exact in zip(made, gradients_by(layer, wide, grad.double()), strict=True):
        assert one.dtype is form.dtype
        difference = (one.double() - exact).abs().max()
        assert difference <= 4 * UNITS[form.dtype] * exact.abs().max()
    return found


@pytest.mark.parametrize(
    "form",
    [
        Form(),
        Form(batch=2, heads=4, keys=130, is_causal=True, dtype=torch.float16),
        Form(queries=130, keys=70, is_causal=True),
        Form(batch=2, mask=(2, 1, 1)),
        Form(heads=4, mask=(1, 4, 70), width=128),
        Form(is_packed=True),
        Form(queries=2, width=40),
    ],
    ids=str,
)
def test_the_sources_compute_gradients(form: Form) -> None:
    forward, backward = check(form, form.operands())
    assert [k.template for k in templates(forward.program)] == ["flash_attention"]
    assert [k.template for k in templates(backward.program)] == ["", "flash_gradients"]
    report = dict(backward.stages)["report"]
    assert "attention: 1 of gradients by kernels" in report
    # Each step of the plan has the node that it computes.
    steps = [line for line in report.splitlines() if line.startswith("step ")]
    assert len(steps) == len(backward.program.plan.steps)
    assert all("attention_backward" in line for line in steps)


def test_a_program_takes_all_heads_that_share_keys_if_there_are_many() -> None:
    form = Form(batch=2, heads=6, groups=2, queries=130, keys=70, is_causal=True)
    assert TARGET.flash_attention is not None
    many = replace(TARGET, flash_attention=replace(TARGET.flash_attention, least_programs=0))
    kernels = [templates(check(form, form.operands(), t)[1].program)[1] for t in (TARGET, many)]
    assert [constant(kernel, "OWN_HEADS") for kernel in kernels] == [1, 3]


def backward_of(form: Form) -> tuple[CapturedGraph, list[Tensor]]:
    operands = form.operands()
    _, backward = traced_with_gradients(form, operands)
    return backward, operands


def test_gradients_that_must_not_depend_on_scheduling_are_the_frameworks() -> None:
    found = optimized(backward_of(Form())[0], needs_fixed_order=True)
    assert not templates(found.program)
    reason = "the scale varies, or results must not depend on scheduling"
    assert f"attention: 1 of gradients by the framework: {reason}" in dict(found.stages)["report"]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form(width=136), "of heads of other than 32 to 128 elements"),
        (Form(width=44), "of heads of no multiple of 8 elements"),
        (Form(dtype=torch.float32), "of f32, for which kernels were not timed"),
    ],
)
def test_other_gradients_are_the_frameworks(form: Form, reason: str) -> None:
    found = optimized(backward_of(form)[0])
    assert not templates(found.program)
    assert f"attention: 1 of gradients by the framework: {reason}" in dict(found.stages)["report"]


def test_gradients_of_a_mask_are_the_frameworks() -> None:
    form = Form(mask=(1, 2, 70))
    *operands, mask = form.operands()
    bias = torch.where(mask, 0.0, -1.0).to(form.dtype).requires_grad_()
    forward, backward = map(optimized, traced_with_gradients(form, [*operands, bias]))
    assert [k.template for k in templates(forward.program)] == ["flash_attention"]
    assert not templates(backward.program)
    report = dict(backward.stages)["report"]
    assert "attention: 1 of gradients by the framework: the mask has gradients, too" in report
