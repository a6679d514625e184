"""Gradients of attention by template kernels, whose sources an interpreter runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.targets import TargetFacts
from optimizer_svc.pipeline import OptimizeResult
from tests.support.attention_forms import TARGET, Form, traced_with_gradients
from tests.support.gradient_programs import attended, compiled_for_hopper, gradients_by, optimized
from tests.support.template_kernels import UNITS, constant, templates


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
