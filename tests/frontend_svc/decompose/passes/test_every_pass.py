"""What holds for every pass: tests of its own, and an unchanged meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontend_svc.decompose.pipeline import PASSES
from frontend_svc.decompose.rewriting import RewritePass
from kernelfarm.ir.interpret import run_graph
from kernelfarm.ir.verify import verify_graph
from tests.support.examples import examples
from tests.support.random_graphs import Case, cases, run_extern


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_each_pass_has_a_test_module_with_a_golden(step: RewritePass) -> None:
    module = Path(__file__).with_name(f"test_{step.name}.py")
    text = module.read_text(encoding="utf-8")
    assert "@pytest.mark.golden" in text
    assert f'before_and_after("{step.name}"' in text


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
@given(case=st.one_of(cases(), cases(symbolic=True)))
@settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    print_blob=True,
    max_examples=examples(80),
)
def test_a_pass_keeps_the_meaning(step: RewritePass, case: Case) -> None:
    changed = step.rewrite(case.graph, case.graph).graph
    verify_graph(changed)
    assert changed.output_types == case.graph.output_types
    expected = run_graph(case.graph, case.inputs, run_extern)
    found = run_graph(changed, case.inputs, run_extern)
    for ours, reference in zip(map(np.asarray, found), map(np.asarray, expected), strict=True):
        np.testing.assert_array_equal(ours, reference, strict=True)
