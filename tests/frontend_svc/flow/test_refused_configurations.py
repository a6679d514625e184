"""Configurations of users' kernels that a toolchain refuses are left out of the plan."""

from __future__ import annotations

import pytest

from frontend_svc.flow.refused_configurations import alternatives, without_refused
from kernelfarm.errors import KernelRejectedError
from kernelfarm.v1 import plan_pb2


def _plan(kernels: int, *steps: int | list[tuple[int, int]]) -> plan_pb2.Plan:
    """A plan; an integer is the launch of a kernel, a list the choices of an extern step."""
    plan = plan_pb2.Plan(kernels=[plan_pb2.KernelRef(name=f"k{n}") for n in range(kernels)])
    for step in steps:
        if isinstance(step, int):
            plan.steps.add().launch.kernel = step
        else:
            extern = plan.steps.add().extern_call
            for kernel, configuration in step:
                extern.choices.add(kernel=kernel, configuration=configuration)
    return plan


def _choices(plan: plan_pb2.Plan) -> list[list[tuple[int, int]]]:
    steps = (step.extern_call for step in plan.steps if step.HasField("extern_call"))
    return [[(c.kernel, c.configuration) for c in step.choices] for step in steps]


def test_a_kernel_can_be_refused_if_no_step_needs_it() -> None:
    plan = _plan(6, 0, [(1, 0), (2, 1), (3, 2)], [(3, 0)], [(4, 0), (5, 1)], [])

    assert alternatives(plan) == (1, 2, 4, 5)


def test_the_others_keep_their_order_and_the_number_of_their_configuration() -> None:
    plan = _plan(5, 0, [(1, 0), (2, 1), (3, 2)], [(4, 0)])
    before = plan.SerializeToString(deterministic=True)
    kept = without_refused(plan, {1: "it needs 300000 bytes of shared memory"})

    assert kept.kernels == (0, 2, 3, 4)
    assert [kernel.name for kernel in kept.plan.kernels] == ["k0", "k2", "k3", "k4"]
    assert _choices(kept.plan) == [[(1, 1), (2, 2)], [(3, 0)]]
    assert kept.plan.steps[0].launch.kernel == 0
    assert kept.notes == (
        "user kernel k1 is left out of the choice: it needs 300000 bytes of shared memory",
    )
    assert plan.SerializeToString(deterministic=True) == before


def test_a_plan_without_refused_kernels_is_the_same_object() -> None:
    plan = _plan(2, 0, [(1, 0)])

    assert without_refused(plan, {}).plan is plan


def test_a_step_without_any_kernel_is_an_error_with_the_distinct_reasons() -> None:
    plan = _plan(7, [(n, n) for n in range(7)])
    reasons = {n: f"reason {min(n, 5)}" for n in range(7)}

    expected = r"none of 7 configurations compiles.*: reason 0;.*reason 3; and 2 more"
    with pytest.raises(KernelRejectedError, match=expected):
        without_refused(plan, reasons)
