"""Temporaries that have memory of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings

from kernelfarm.ir.algebra.expr import IntLike, as_expr, symbol
from kernelfarm.ir.graph_ir import Graph, SizeSymbol
from kernelfarm.ir.plan_memory import arena_bytes, plan_memory
from kernelfarm.ir.program_ir import Plan
from kernelfarm.ir.verify import verify_program
from optimizer_svc.analysis.apart import MIN_BYTES, choose_apart
from optimizer_svc.passes.plan_program import place_temporaries
from tests.support.examples import examples
from tests.support.prims_graphs import Maker, program_of, tensor_with_strides
from tests.support.random_graphs import Case, cases

WIDE = 512
"""A square has 1 MiB."""


def apart(plan: Plan) -> list[str]:
    return [buffer.name for buffer in plan.buffers if buffer.is_apart]


def results_beside(sizes: Sequence[IntLike], late: int) -> Graph:
    """exp of an input for a product; then `late` results of the framework, which are returned."""
    make = Maker([SizeSymbol(name, 1, None) for size in sizes for name in as_expr(size).symbols])
    rows, width = sizes
    x = make.add_input(tensor_with_strides(rows, width))
    small, kind = tensor_with_strides(4, 4), tensor_with_strides(rows, width)
    operands = [make.add("exp", x), x]
    (y,) = make.add_extern("aten.mm.default", 0, operands, [small], is_contraction=True)
    found = [y]
    for number in range(late):
        (z,) = make.add_extern("aten.mm.default", number + 1, [y, x], [kind], is_contraction=True)
        found.append(z)
    return make.returning(*found)


def test_a_temporary_that_ends_before_the_peak_is_apart() -> None:
    plan = program_of(results_beside((WIDE, WIDE), 3)).plan
    found = plan_memory(plan, {})
    assert apart(plan) == ["tmp0"]
    assert arena_bytes(plan, {}) == 0
    assert plan.arena_bytes.as_int() == 4 * WIDE * WIDE  # for clients that do not know it
    assert found.peak_bytes == found.least_bytes


def test_inputs_that_end_early_count_until_their_last_use() -> None:
    make = Maker()
    kind, small = tensor_with_strides(WIDE, WIDE), tensor_with_strides(4, 4)
    given = [make.add_input(kind) for _ in range(8)]
    x = make.add_input(small)
    (y,) = make.add_extern("aten.mm.default", 0, [*given, x], [small], is_contraction=True)
    row = make.add("sum", y, dims=(0,))
    wide = make.add("exp", make.spread(row, (1,), WIDE * WIDE // 4, 4))
    (z,) = make.add_extern("aten.mm.default", 1, [wide, x], [small], is_contraction=True)
    # A backward call holds its inputs at the first step, and the temporary later.
    assert len(apart(program_of(make.returning(z)).plan)) == 1


def test_a_temporary_of_the_peak_stays_in_the_arena() -> None:
    make = Maker()
    x = make.add_input(tensor_with_strides(WIDE, WIDE))
    kind = tensor_with_strides(WIDE, WIDE)
    operands = [make.add("exp", x), x]
    (y,) = make.add_extern("aten.mm.default", 0, operands, [kind], is_contraction=True)
    plan = program_of(make.returning(y)).plan
    assert apart(plan) == []
    assert plan_memory(plan, {}).peak_bytes == 8 * WIDE * WIDE


def test_small_temporaries_stay_in_the_arena() -> None:
    rows = MIN_BYTES // 4 // WIDE - 1
    assert apart(program_of(results_beside((rows, WIDE), 3)).plan) == []


def test_sizes_that_vary_are_assumed_to_be_large() -> None:
    plan = program_of(results_beside((symbol("s0"), 8), 3)).plan
    assert apart(plan) == ["tmp0"]
    assert arena_bytes(plan, {"s0": 7}) == 0


@given(case=cases())
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_a_plan_with_temporaries_apart_is_well_formed_and_needs_less(case: Case) -> None:
    program = program_of(case.graph)
    chosen = choose_apart(program.plan, {}, least_bytes=1)
    plan = place_temporaries(program.plan, chosen)
    verify_program(replace(program, plan=plan))
    before, after = plan_memory(program.plan, {}), plan_memory(plan, {})
    assert len(apart(plan)) == len(chosen)
    assert after.peak_bytes <= before.peak_bytes
    assert after.least_bytes == before.least_bytes
