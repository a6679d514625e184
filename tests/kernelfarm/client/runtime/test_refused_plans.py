"""Plans that contradict their graph, or point beyond what exists, are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    Launch,
    Plan,
)
from tests.kernelfarm.client.runtime.handmade_plans import (
    buffer,
    exp_mm_neg,
    program,
    view,
)


def test_an_extern_step_of_another_operator_is_refused():
    _, _, captured, plan, kernels = exp_mm_neg()
    step = dataclasses.replace(plan.steps[1], op="aten.bmm.default")
    forged = dataclasses.replace(plan, steps=(plan.steps[0], step, plan.steps[2]))
    with pytest.raises(InvalidGraphError, match=r"aten.bmm.default for node 1, which is aten.mm"):
        PlanRunner(program(captured, forged, kernels)[0])


def test_an_extern_step_with_a_missing_tensor_is_refused():
    _, _, captured, plan, kernels = exp_mm_neg()
    step = dataclasses.replace(plan.steps[1], args=plan.steps[1].args[:1])
    forged = dataclasses.replace(plan, steps=(plan.steps[0], step, plan.steps[2]))
    with pytest.raises(InvalidGraphError, match=r"1 tensors for aten.mm.default, which takes 2"):
        PlanRunner(program(captured, forged, kernels)[0])


def _temporary(**changes: int) -> Callable[[Plan], tuple[Buffer, ...]]:
    exprs = {name: as_expr(value) for name, value in changes.items()}

    def buffers(plan: Plan) -> tuple[Buffer, ...]:
        changed = dataclasses.replace(plan.buffers[2], **exprs)
        return (*plan.buffers[:2], changed, *plan.buffers[3:])

    return buffers


def _larger_input(plan: Plan) -> tuple[Buffer, ...]:
    return (dataclasses.replace(plan.buffers[0], size_elems=as_expr(13)), *plan.buffers[1:])


def _two_temporaries(plan: Plan) -> tuple[Buffer, ...]:
    """One that is apart lies before the other, whose bytes the arena of the client lacks."""
    apart = buffer("tmp1", BufferKind.TEMPORARY, 4, offset_bytes=as_expr(0), is_apart=True)
    return (*plan.buffers, apart)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": ()}, "0 outputs; the captured graph has 1"),
        ({"arena_bytes": as_expr(64)}, "expected it inside"),
        ({"arena_bytes": as_expr(-64)}, "expected it inside"),
        ({"buffers": _temporary(offset_bytes=-64)}, "at bytes -64 to -16 of an arena of 128"),
        ({"buffers": _temporary(offset_bytes=65)}, "aligned to 64"),
        ({"buffers": _temporary(size_elems=17)}, "at bytes 64 to 132"),
        ({"buffers": _temporary(size_elems=-1)}, "expected it inside"),
        ({"buffers": _two_temporaries}, "expected it inside"),
        ({"steps": (Launch(0, ("in0", "nowhere")),)}, "nowhere"),
        ({"steps": (Launch(7, ("in0", "tmp0")),)}, "kernel 7 of 2"),
        ({"outputs": (view("out0", (4, 5), (6, 1)),)}, "ends at element 23"),
        ({"buffers": _larger_input}, "the input spans 12"),
        ({"outputs": (view("out0", (4, 5), (5, 1), 1),)}, "ends at element 21"),
        ({"outputs": (view("in0", (4, 3), (3, 1)),)}, "which it does not update"),
    ],
)
def test_a_plan_that_points_beyond_what_exists_is_refused(change, message):
    _, _, captured, plan, kernels = exp_mm_neg()
    made = {key: value(plan) if callable(value) else value for key, value in change.items()}
    forged = dataclasses.replace(plan, **made)
    with pytest.raises(InvalidGraphError, match=message):
        PlanRunner(program(captured, forged, kernels)[0])
