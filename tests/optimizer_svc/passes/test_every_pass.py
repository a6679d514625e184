"""What holds for every pass: tests of its own, and for passes over graphs an unchanged meaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.interpret import run_graph
from kernelfarm.ir.prims import CLIENT_OPS
from kernelfarm.ir.verify import verify_graph
from kernelfarm.targets import target_facts
from optimizer_svc.ir.renaming import with_values
from optimizer_svc.pipeline import PASSES, Pass, given_facts
from tests.support.examples import examples
from tests.support.optimizer_passes import givers_of
from tests.support.random_graphs import Case, cases, run_extern
from tests.support.random_updates import updating_cases

GRAPH_PASSES = [step for step in PASSES if step.gives == "graph"]
TARGET = target_facts("cuda:sm_90a")
NOT_IDEMPOTENT = {"update-inputs"}
"""Passes whose second run changes the graph again: a copied update is copied once more."""


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_each_pass_has_a_test_module_with_a_golden(step: Pass) -> None:
    module = Path(__file__).with_name(f"test_{step.name.replace('-', '_')}.py")
    text = module.read_text(encoding="utf-8")
    assert "@pytest.mark.golden" in text
    assert f'before_and_after("{step.name}"' in text


def with_each_node_twice(graph: Graph) -> Graph:
    """An equal graph in which every prim is computed twice. Readers alternate between the two."""
    fresh = 1 + max([*graph.types(), *(source.value for source in graph.inputs)], default=0)
    nodes: list[Node] = []
    second: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        nodes.append(with_values(node, second) if number % 2 else node)
        if node.op not in CLIENT_OPS:
            nodes.append(replace(node, results=(fresh,)))
            second[node.results[0]] = fresh
            fresh += 1
    return replace(graph, nodes=tuple(nodes))


@st.composite
def graphs_with_inputs(draw: st.DrawFn) -> Case:
    """Random graphs: static, symbolic, with updates, with repeated nodes."""
    case = draw(st.one_of(cases(), cases(symbolic=True), updating_cases()))
    return Case(with_each_node_twice(case.graph), case.inputs) if draw(st.booleans()) else case


@pytest.mark.parametrize("step", GRAPH_PASSES, ids=lambda step: step.name)
@given(case=graphs_with_inputs())
@settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    print_blob=True,
    max_examples=examples(80),
)
def test_a_pass_over_graphs_keeps_the_meaning_and_is_done_after_one_run(
    step: Pass, case: Case
) -> None:
    changed: Graph = run_alone(step, case.graph)
    verify_graph(changed)
    assert changed.output_types == case.graph.output_types
    assert changed.updates == case.graph.updates
    expected = run_graph(case.graph, case.inputs, run_extern)
    found = run_graph(changed, case.inputs, run_extern)
    for ours, reference in zip(map(np.asarray, found), map(np.asarray, expected), strict=True):
        np.testing.assert_array_equal(ours, reference, strict=True)
    if changed is case.graph or step.name not in NOT_IDEMPOTENT:
        assert run_alone(step, changed) is changed


def run_alone(step: Pass, graph: Graph) -> Graph:
    """The graph after a pass and those before it that give it facts other than the graph."""
    facts = given_facts(graph, TARGET)
    for earlier in givers_of(step):
        facts[earlier.gives] = earlier.run(*(facts[name] for name in earlier.needs))
    changed: Graph = step.run(*(facts[name] for name in step.needs))
    return changed
