"""The cases of integer weights are what they are meant to be; no GPU is needed."""

from __future__ import annotations

import pytest
import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.gpu.captures import captured_of
from tests.gpu.case import Case, called
from tests.gpu.integer_weights import integer_cases
from tests.gpu.run_case import problem_with

CPU = torch.device("cpu")
CASES = [pytest.param(case, id=case.name) for case in integer_cases()]


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_that_multiplies_computes_the_weight(case: Case) -> None:
    """No library multiplies, and kernels store nothing but rows of x and of the result."""
    (captured,) = captured_of(case, CPU)
    graph = decompose_to_prims(captured.graph).graph
    program = optimize(graph, target_facts("cuda:sm_90a")).program
    assert not [step for step in program.plan.steps if isinstance(step, ExternCall)]
    made = [p for kernel in program.kernels for p in kernel.params if p.name.startswith("out")]
    x, packed = case.arguments[0]()[:2]
    assert max((param.size_elems.as_int() for param in made), default=0) <= 2 * x.numel()
    assert 2 * x.numel() < packed.numel()


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_a_product_of_other_terms_is_wrong(case: Case) -> None:
    """Eager's result is right, and not that in which each integer meets its neighbour's x."""
    given = case.arguments[0]()
    x, *stored = given
    right = called(case, case.function, given)
    wrong = called(case, case.function, (x.roll(1, -1), *stored))
    assert problem_with(case, given, (right[0], given), CPU) == ""
    assert problem_with(case, given, (wrong[0], given), CPU)
