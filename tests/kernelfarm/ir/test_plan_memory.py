"""The memory that a plan needs."""

from __future__ import annotations

from hypothesis import given, settings

from kernelfarm.ir.plan_memory import PlanMemory, buffer_uses, plan_memory
from kernelfarm.ir.program_ir import BufferKind
from tests.support.examples import examples
from tests.support.prims_graphs import Maker, program_of, tensor, tensor_with_strides
from tests.support.random_graphs import Case, cases

KIB = 1024


def test_an_extern_result_counts_from_its_step_to_its_last_use() -> None:
    make = Maker()
    x = y = make.add_input(tensor(16, 16))
    kind = tensor_with_strides(16, 16)
    for number in range(3):
        (y,) = make.add_extern("aten.mm.default", number, [y, x], [kind], is_contraction=True)
    z = make.add("exp", y)
    program = program_of(make.returning(z))
    assert plan_memory(program.plan, {}) == PlanMemory(
        arena_bytes=0,
        output_bytes=0,
        extern_bytes=2 * KIB,
        apart_bytes=0,
        peak_step=1,
        least_arena_bytes=0,
        least_bytes=2 * KIB,
    )


@given(case=cases())
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_no_plan_needs_less_than_the_lower_bound(case: Case) -> None:
    plan = program_of(case.graph).plan
    found = plan_memory(plan, {})
    assert found.arena_bytes >= found.least_arena_bytes
    assert found.peak_bytes >= found.least_bytes
    uses = buffer_uses(plan)
    for buffer in plan.buffers:
        if buffer.kind in (BufferKind.TEMPORARY, BufferKind.EXTERN):
            first, last = uses[buffer.name]
            assert first <= last
