"""Attention of several queries by a template kernel, whose source an interpreter runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.program_ir import ExternCall, Program
from kernelfarm.ir.verify import verify_program
from optimizer_svc.pipeline import optimize
from tests.support.attention_forms import TARGET, Form, traced_with_gradients
from tests.support.template_kernels import (
    as_array,
    check_by_interpreter,
    constant,
    interpreted,
    templates,
)
from tests.support.traced_graphs import traced_one


def program_of(form: Form, operands: Sequence[Tensor] | None = None) -> Program:
    captured = traced_one(form.attend, *(operands or form.operands()))
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
    program = optimize(lowered.graph, TARGET).program
    verify_program(program)
    return program


@pytest.mark.parametrize(
    "form",
    [
        Form(),
        Form(batch=2, heads=4, keys=130, is_causal=True, dtype=torch.float16),
        Form(queries=130, is_causal=True),
        Form(batch=2, mask=(2, 1, 1)),
        Form(heads=4, mask=(1, 4, 70), queries=70, width=128),
        Form(is_packed=True),
        Form(queries=2, width=40),
    ],
    ids=str,
)
def test_the_source_computes_attention(form: Form) -> None:
    operands = form.operands()
    program = check_by_interpreter(form.attend, operands, TARGET)
    (kernel,) = templates(program)
    assert kernel.template == "flash_attention"
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_source_gives_the_log_sum_exps_that_gradients_start_from(is_causal: bool) -> None:
    form = Form(batch=2, heads=4, keys=100, is_causal=is_causal)
    operands = form.operands()
    forward, _ = traced_with_gradients(form, operands)
    lowered = decompose_to_prims(forward.graph, max_sorted_elems=TARGET.max_sorted_elems)
    found = optimize(lowered.graph, TARGET)
    verify_program(found.program)
    assert len(templates(found.program)) == 1
    report = dict(found.stages)["report"]
    assert "attention: 1 of several queries with log-sum-exps by kernels" in report
    inputs = [as_array(operands[s]) for s in forward.sources if isinstance(s, int)]
    results = run_program(found.program, inputs, run_template=interpreted)
    (sums,) = (np.asarray(r) for r in results if r is not None and r.dtype == np.float32)
    query, key, _ = (x.detach().double() for x in operands)
    scores = query @ key.repeat_interleave(2, 1).mT / 8
    if is_causal:
        scores += torch.full_like(scores, -torch.inf).triu(1)
    assert np.abs(sums - scores.logsumexp(-1).numpy()).max() < 1e-4


def test_what_tensor_maps_cannot_describe_is_left_to_the_source() -> None:
    form = Form()
    query, key, value = form.operands()
    odd = torch.randn(1, 2, 70, 65).to(form.dtype)[..., 1:]
    spread = key[:, :1].expand(1, 2, 70, 64)
    for operands in ([odd, key, value], [query, spread, value]):
        (kernel,) = templates(program_of(form, operands))
        assert not kernel.template
    check_by_interpreter(form.attend, [odd, spread, value], TARGET)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form(width=136), "of heads of other than 32 to 128 elements"),
        (Form(width=44), "of heads of no multiple of 8 elements"),
        (Form(dtype=torch.float32), "of f32, for which kernels were not timed"),
    ],
)
def test_other_attention_is_the_frameworks(form: Form, reason: str) -> None:
    captured = traced_one(form.attend, *form.operands())
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
    found = optimize(lowered.graph, TARGET)
    assert not templates(found.program)
    assert f"attention: 1 by the framework: {reason}" in dict(found.stages)["report"]


def test_the_report_names_the_template() -> None:
    captured = traced_one(Form().attend, *Form().operands())
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
    report = dict(optimize(lowered.graph, TARGET).stages)["report"]
    assert re.search(r"template kernel flash_attention_\w+: 1 launches", report)
    assert "attention: 1 of several queries by kernels" in report


def test_kernels_know_the_sizes_that_do_not_vary() -> None:
    (kernel,) = templates(program_of(Form(batch=3, heads=6, groups=2, queries=100, keys=90)))
    names = ("sequences", "HEADS", "SHARING", "length", "key_count", "WIDTH")
    assert [constant(kernel, name) for name in names] == [3, 6, 3, 100, 90, 64]
    assert not kernel.scalars
