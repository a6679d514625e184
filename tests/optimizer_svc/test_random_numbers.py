"""Seeds in programs: the first step draws all seeds that are in use."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import IntLike, as_expr, product_of, symbol
from kernelfarm.ir.graph_ir import Graph, SizeSymbol
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.interpret.random_bits import philox
from kernelfarm.ir.program_ir import BufferKind, DrawSeeds, Launch, Program
from kernelfarm.ir.text.plan import print_plan
from kernelfarm.ir.verify import verify_program
from optimizer_svc.pipeline import optimize
from tests.support.prims_graphs import TARGET, Maker, sizes, tensor, tensor_with_strides

SEEDS = [12345, -6789, 1 << 62]


def random_bits(make: Maker, index: int, *shape: IntLike) -> int:
    """64 random bits for each element, from the seed with this index."""
    seed = make.add("seed", index=index)
    positions = make.add("iota", dtype=DType.I64, length=product_of(sizes(*shape)))
    position = make.add("reshape", positions, shape=sizes(*shape))
    return make.add("philox", make.spread(seed, (), *shape), position)


def optimized(graph: Graph) -> Program:
    program = optimize(graph, TARGET).program
    verify_program(program)
    return program


def two_draws() -> Graph:
    """A graph that uses the bits of seeds 2 and 0, in this order, and not those of seed 1."""
    make = Maker()
    x = make.add_input(tensor_with_strides(6, 7, dtype=DType.I64))
    late, _, early = (random_bits(make, index, 6, 7) for index in (2, 1, 0))
    total = make.add("sum", make.add("bit_xor", late, x), dims=(1,))
    return make.returning(total, make.add("add", early, x))


def test_a_program_computes_the_graph_s_numbers_from_the_same_seeds() -> None:
    graph, x = two_draws(), np.arange(42).reshape(6, 7)
    expected = run_graph(graph, [x], seeds=[SEEDS[0], 0, SEEDS[1]])
    found = run_program(optimized(graph), [x], seeds=SEEDS[:2])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    second = philox(np.array(SEEDS[0]), np.arange(42)).reshape(6, 7) + x
    np.testing.assert_array_equal(found[1], second)


def test_one_step_draws_the_used_seeds_in_the_order_of_their_indices() -> None:
    program = optimized(two_draws())
    assert [type(step) for step in program.plan.steps].count(DrawSeeds) == 1
    draw = program.plan.steps[0]
    assert isinstance(draw, DrawSeeds)
    assert len(draw.buffers) == 2
    assert f"0: draw seeds {', '.join(draw.buffers)}\n" in print_plan(program.plan)


def test_the_report_counts_seeds_and_has_the_plan_s_step_numbers() -> None:
    found = optimize(two_draws(), TARGET)
    report = dict(found.stages)["report"]
    assert "seeds: 2, drawn by the framework's generator" in report
    for number, name in re.findall(r"^step (\d+): kernel (\S+):", report, re.M):
        step = found.program.plan.steps[int(number)]
        assert isinstance(step, Launch)
        assert found.program.plan.kernel_names[step.kernel] == name


def test_seeds_of_one_index_are_one_node_and_others_are_not() -> None:
    make = Maker()
    make.add_input(tensor(4))
    again, once = make.add("seed", index=0), make.add("seed", index=0)
    assert again == once
    assert make.add("seed", index=1) != once


def test_a_graph_without_random_numbers_draws_nothing() -> None:
    make = Maker()
    x = make.add_input(tensor_with_strides(4))
    program = optimized(make.returning(make.add("exp", x)))
    assert not any(isinstance(step, DrawSeeds) for step in program.plan.steps)


def test_sizes_may_vary() -> None:
    n = symbol("n")
    make = Maker((SizeSymbol("n", 2, None),))
    make.add_input(tensor_with_strides(n))
    graph = make.returning(random_bits(make, 0, n))
    program = optimized(graph)
    for count in (2, 5, 300):
        (found,) = run_program(program, [np.zeros(count, np.float32)], seeds=SEEDS)
        np.testing.assert_array_equal(found, philox(np.array(SEEDS[0]), np.arange(count)))


def damaged(program: Program, **buffer: object) -> Program:
    """The program with its seeds' buffers changed."""
    plan = program.plan
    buffers = tuple(
        replace(b, **buffer) if b.kind is BufferKind.EXTERN else b for b in plan.buffers
    )
    return replace(program, plan=replace(plan, buffers=buffers))


def test_plans_with_wrong_draws_are_refused() -> None:
    program = optimized(two_draws())
    plan = program.plan
    twice = replace(program, plan=replace(plan, steps=(plan.steps[0], *plan.steps)))
    with pytest.raises(VerificationError, match="several steps draw seeds"):
        verify_program(twice)
    draw = plan.steps[0]
    assert isinstance(draw, DrawSeeds)
    same = DrawSeeds((draw.buffers[0],) * 2)
    with pytest.raises(VerificationError, match="expected distinct ones"):
        verify_program(replace(program, plan=replace(plan, steps=(same, *plan.steps[1:]))))
    with pytest.raises(VerificationError, match="one element of i64"):
        verify_program(damaged(program, size_elems=as_expr(2)))
    without = replace(program, plan=replace(plan, steps=plan.steps[1:]))
    with pytest.raises(VerificationError, match="which nothing has written"):
        verify_program(without)


def test_missing_seeds_are_an_error() -> None:
    with pytest.raises(VerificationError, match="1 seeds; expected 2"):
        run_program(optimized(two_draws()), [np.zeros((6, 7), np.int64)], seeds=[1])
