"""Property: the program of a random graph computes what the graph means, element for element."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.examples import examples
from tests.support.random_graphs import Case, cases, run_extern

TARGET = target_facts("cpu:x86-64-v3")
NO_DEADLINE = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True
)


@given(case=cases())
@settings(NO_DEADLINE, max_examples=examples(250))
def test_a_static_program_computes_what_its_graph_means(case: Case) -> None:
    _check(case)


@given(case=cases(symbolic=True))
@settings(NO_DEADLINE, max_examples=examples(200))
def test_a_symbolic_program_computes_what_its_graph_means(case: Case) -> None:
    _check(case)


def _check(case: Case) -> None:
    expected = run_graph(case.graph, case.inputs, run_extern)
    program = optimize(case.graph, TARGET).program
    verify_program(program)
    found = run_program(program, case.inputs, run_extern)
    kinds = zip(expected, found, case.graph.output_types, strict=True)
    for reference, got, kind in kinds:
        _check_array(reference, got)
        assert kind is not None and kind.strides is not None


def _check_array(reference: Any, got: Any) -> None:
    assert got.shape == reference.shape
    assert got.dtype == reference.dtype
    # Fused loops sum in another order than NumPy does. Everything else is the same arithmetic.
    np.testing.assert_allclose(
        got, reference, rtol=2e-3 if reference.dtype == np.float16 else 1e-5, atol=1e-6
    )
