"""Sums of many results of the framework are computed in parts."""

from __future__ import annotations

import numpy as np
import pytest

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.plan_memory import plan_memory
from optimizer_svc.analysis.costly_values import MAX_ADDED, MIN_ADDED_BYTES
from tests.support.prims_graphs import Maker, launches, program_of, report_of, tensor_with_strides

WIDTH = 128
RESULT_BYTES = 4 * WIDTH * WIDTH


def sum_of_products(count: int, width: int = WIDTH, *, is_read_again: bool = False) -> Graph:
    """x @ x + x @ x + ..., each product after the sum of those before it."""
    make = Maker()
    kind = tensor_with_strides(width, width)
    x = make.add_input(kind)
    products, total = [], None
    for number in range(count):
        (y,) = make.add_extern("aten.mm.default", number, [x, x], [kind], is_contraction=True)
        products.append(y)
        total = y if total is None else make.add("add", total, y)
    again = [make.add("exp", y) for y in products] if is_read_again else []
    return make.returning(total, *again)


@pytest.mark.parametrize("count", [2 * MAX_ADDED, 3 * MAX_ADDED + 1, 64])
def test_few_results_are_alive_at_a_time(count: int) -> None:
    assert MIN_ADDED_BYTES <= RESULT_BYTES
    graph = sum_of_products(count)
    program = program_of(graph)
    found = plan_memory(program.plan, {})
    # What one kernel adds, the part before it, and the sum.
    assert found.peak_bytes <= (MAX_ADDED + 2) * RESULT_BYTES
    assert len(launches(program)) == -(-count // MAX_ADDED)
    assert "a part of a sum is computed early" in report_of(graph)


def test_the_parts_add_up() -> None:
    program = program_of(sum_of_products(9, 128))
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    numbers = iter(range(1, 10))
    results = [number * x for number in range(1, 10)]

    def product(*_: object) -> list[np.ndarray]:
        return [next(numbers) * x]

    (total,) = run_program(program, [x], run_extern=product)
    np.testing.assert_allclose(total, sum(results), rtol=1e-5)


def test_small_results_are_added_by_one_kernel() -> None:
    assert len(launches(program_of(sum_of_products(9, 16)))) == 1


def test_few_results_are_added_by_one_kernel() -> None:
    assert len(launches(program_of(sum_of_products(MAX_ADDED)))) == 1


def test_results_that_others_read_later_are_added_by_one_kernel() -> None:
    program = program_of(sum_of_products(9, is_read_again=True))
    stored = plan_memory(program.plan, {})
    assert stored.arena_bytes == 0
