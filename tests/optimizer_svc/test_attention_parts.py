"""Attention of one query whose keys a template kernel divides in parts, run by an interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.errors import VerificationError
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import ExternCall, Launch, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.pages.step_graph import step_graph
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.template_kernels import UNITS, as_array, constant, interpreted, templates
from tests.support.traced_graphs import traced_one

TARGET = target_facts("cuda:sm_90a")


@dataclass(frozen=True)
class Form:
    """Queries (batch, groups * heads, queries, width), keys (batch, groups, keys, width)."""

    batch: int = 1
    groups: int = 2
    heads: int = 3
    keys: int = 300
    width: int = 32
    mask: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.bfloat16
    is_turned: bool = False
    queries: int = 1

    def operands(self) -> list[Tensor]:
        """Query, key, value and mask; turned keys have the heads of a position side by side."""
        torch.manual_seed(0)

        def drawn(heads: int, length: int, width: int) -> Tensor:
            shape = (self.batch, length, heads, width)
            if not self.is_turned:
                shape = (self.batch, heads, length, width)
            x = torch.randn(shape).to(self.dtype)
            return x.transpose(1, 2) if self.is_turned else x

        found = [
            drawn(self.groups * self.heads, self.queries, self.width),
            drawn(self.groups, self.keys, self.width),
            drawn(self.groups, self.keys, self.width),
        ]
        if self.mask is not None:
            found.append(torch.rand(*(*self.mask, 1)[:3], self.keys) < 0.7)
        return found


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1]
    )


def program_of(operands: Sequence[Tensor], changed: dict[str, Any] | None = None) -> Program:
    captured = traced_one(attention, *operands)
    facts = replace(TARGET, split_attention=replace(TARGET.split_attention, **(changed or {})))
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=facts.max_sorted_elems)
    program = optimize(lowered.graph, facts).program
    verify_program(program)
    return program


FORMS = (
    Form(),
    Form(batch=2, heads=1, groups=4, keys=1000),
    Form(width=80, keys=257),
    Form(heads=20, keys=129, width=16),
    Form(mask=(1, 1)),
    Form(batch=2, mask=(2, 1), is_turned=True),
    Form(mask=(1, 6), dtype=torch.float16),
    Form(batch=3, mask=(3, 6), keys=640),
    Form(queries=5, heads=2, keys=500),
    Form(batch=2, queries=4, keys=600, mask=(2, 1, 4), is_turned=True),
    Form(queries=3, keys=600, mask=(1, 6, 3)),
)


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_parts_give_the_attention_of_all_keys(form: Form) -> None:
    operands = form.operands()
    if form.mask is not None:
        operands[3][0, 0] = False  # heads with queries that see no key
    program = program_of(operands)
    assert len(templates(program)) == 1
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)
    (found,) = run_program(
        program, [as_array(operand) for operand in operands], run_template=interpreted
    )
    wide = [x.double() if x.is_floating_point() else x for x in operands]
    expected = attention(*wide).numpy()
    difference = np.abs(np.asarray(found, np.float64) - expected).max()
    # Shares are rounded to the type of the values, as the framework's kernels do.
    assert difference <= 4 * UNITS[form.dtype] * np.abs(expected).max()


def test_parts_fill_the_chip_and_have_enough_keys() -> None:
    counts = {
        form: constant(templates(program_of(form.operands()))[0], "PARTS")
        for form in (
            Form(groups=8, keys=512),
            Form(groups=8, keys=4096),
            Form(groups=8, keys=16384, width=16),
            Form(groups=8, keys=300, batch=8),
            Form(groups=4, keys=250, batch=16, width=16),
        )
    }
    assert list(counts.values()) == [4, 32, 32, 2, 1]


def test_many_heads_of_keys_are_the_frameworks() -> None:
    assert not templates(program_of(Form(groups=5, keys=256, batch=13).operands()))


def test_several_queries_are_divided_if_more_programs_fill_the_chip() -> None:
    kernels = {
        form: templates(program_of(form.operands()))[0]
        for form in (
            Form(groups=8, heads=4, queries=8, keys=4096, width=64),
            Form(groups=8, heads=4, queries=9, keys=4096, width=64),
            Form(groups=8, heads=4, queries=8, keys=200, width=64),
            Form(groups=8, heads=4, queries=8, keys=2048, width=64, batch=9),
        )
    }
    assert [kernel.entry for kernel in kernels.values()] == [
        "attention_parts",
        "flash_attention",  # more rows than were measured
        "flash_attention",  # one part
        "flash_attention",  # enough heads
    ]


def test_too_many_heads_that_share_keys_are_the_frameworks() -> None:
    assert templates(program_of(Form(groups=1, heads=32, keys=256, width=16).operands()))
    assert not templates(program_of(Form(groups=1, heads=33, keys=256, width=16).operands()))


def test_more_parts_than_keys_need_are_empty() -> None:
    form = Form(keys=140)
    program = program_of(form.operands(), {"least_keys": 2, "programs": 4096})
    assert constant(templates(program)[0], "PARTS") == 64
    (found,) = run_program(
        program, [as_array(x) for x in form.operands()], run_template=interpreted
    )
    expected = attention(*(x.double() for x in form.operands())).numpy()
    assert np.abs(np.asarray(found, np.float64) - expected).max() <= 4 * 2**-8


def test_a_program_with_a_template_needs_somebody_to_run_it() -> None:
    form = Form()
    with pytest.raises(VerificationError, match="in Triton and needs run_template"):
        run_program(program_of(form.operands()), [as_array(x) for x in form.operands()])


def broken(program: Program, **changes: Any) -> Program:
    """The program with another launch of the template."""
    steps = tuple(
        replace(step, **changes)
        if isinstance(step, Launch) and step.kernel >= len(program.kernels)
        else step
        for step in program.plan.steps
    )
    return replace(program, plan=replace(program.plan, steps=steps))


def test_launches_of_templates_are_verified() -> None:
    program = program_of(Form().operands())
    (launch,) = (
        step
        for step in program.plan.steps
        if isinstance(step, Launch) and step.kernel >= len(program.kernels)
    )
    names = launch.buffers
    cases = {
        r"5 buffers and 3 sizes; expected 6 and 3": {"buffers": names[:-1]},
        r"6 buffers and 2 sizes; expected 6 and 3": {"sizes": launch.sizes[:-1]},
        r"of f32 as query; expected bf16": {"buffers": (names[3], *names[1:])},
        r"tmp0 is written and passed twice": {"buffers": (*names[:5], names[3])},
        r"buffer 'no' is not among": {"buffers": ("no", *names[1:])},
    }
    for message, changes in cases.items():
        with pytest.raises(VerificationError, match=message):
            verify_program(broken(program, **changes))


def test_a_page_shows_what_a_template_reads_and_writes() -> None:
    program = program_of(Form(mask=(1, 1)).operands())
    kernels = [
        kernel if isinstance(kernel, Kernel) else Kernel(kernel.name, (), (), (), (), ())
        for kernel in program.all_kernels
    ]
    steps = step_graph(program.plan, kernels).steps
    assert [(step.reads, step.writes) for step in steps] == [
        (("in3",), ("tmp0",)),
        (("in0", "in1", "in2", "tmp0"), ("tmp1", "tmp2", "tmp3")),
        (("tmp2", "tmp3", "tmp1"), ("out0",)),
    ]


def test_the_report_counts_launches_of_templates() -> None:
    captured = traced_one(attention, *Form().operands())
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
    report = dict(optimize(lowered.graph, TARGET).stages)["report"]
    assert "launches: 2 of 2 distinct kernels" in report
    assert re.search(r"template kernel attention_parts_\w+: 1 launches, \d+ lines", report)
    assert re.search(r"step 0: kernel attention_parts_\w+: aten\._?scaled_dot_product", report)
    assert "attention: 1 of one query, keys in 2 parts, by kernels" in report
