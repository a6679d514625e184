"""Small graphs that once took exponential work end quickly, with a program or an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.digest import program_key
from kernelfarm.errors import CallerError, WorkBudgetError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.work_budget import DEFAULT_WORK_STEPS, work_budget
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_from_proto, graph_to_proto
from optimizer_svc.pipeline import optimize
from tests.optimizer_svc.hostile_graphs import cat_of, outcome_in_time, product_of_extents, relaid

TARGET = target_facts("cpu:x86-64-v3")


def compiled(make: Callable[..., Graph], *args: int) -> str:
    """The number of kernels or the error of a graph, after the same steps as in a farm."""
    with work_budget(DEFAULT_WORK_STEPS):
        try:
            graph = graph_from_proto(graph_to_proto(make(*args)))
            program_key(graph, TARGET.name, ())
            prims = graph_to_proto(decompose_to_prims(graph).graph)
            return f"{len(optimize(graph_from_proto(prims), TARGET).program.kernels)} kernels"
        except CallerError as error:
            return f"{type(error).__name__}: {error}"


def steps_of(graph: Graph) -> int:
    """The steps of work from the captured graph to the program."""
    with work_budget(DEFAULT_WORK_STEPS) as budget:
        optimize(decompose_to_prims(graph).graph, TARGET)
    return budget.used


@pytest.mark.parametrize("dim", [0, 1])
def test_a_cat_of_64_dynamic_inputs_compiles(dim: int) -> None:
    assert outcome_in_time(compiled, cat_of, 64, dim) == "3 kernels"


def test_the_work_for_a_cat_grows_at_most_with_the_square_of_its_inputs() -> None:
    few, many = steps_of(cat_of(16)), steps_of(cat_of(64))
    assert many < 4**2 * 2 * few


def test_a_cat_of_256_dynamic_inputs_compiles() -> None:
    assert outcome_in_time(compiled, cat_of, 256) == "3 kernels"


def test_a_product_of_many_sums_is_refused_quickly() -> None:
    found = outcome_in_time(compiled, product_of_extents, 40)
    assert found.startswith(("InvalidGraphError: ", "WorkBudgetError: "))
    assert len(found) < 1000


def test_views_of_views_compile() -> None:
    assert outcome_in_time(compiled, relaid, 40).endswith(" kernels")


def test_the_error_of_a_spent_budget_names_the_pass() -> None:
    prims = decompose_to_prims(cat_of(64)).graph
    message = r"^[a-z-]+: the work budget of 2000 steps is spent"
    with pytest.raises(WorkBudgetError, match=message), work_budget(2000):
        optimize(prims, TARGET)
