"""Steps in another order, so that less memory is alive."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.program_ir import Launch
from kernelfarm.targets import target_facts
from optimizer_svc.ir.fused import Fusion
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.memory_uses import MADE_KINDS, Memories, live_bytes
from optimizer_svc.passes.order_steps import order_steps
from optimizer_svc.pipeline import PASSES, given_facts
from tests.support.examples import examples
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, extern_calls, program_of, tensor, tensor_with_strides
from tests.support.random_graphs import Case, cases

TARGET = target_facts("cpu:x86-64-v3")
NO_DEADLINE = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True
)

MADE_EARLY = """\
graph prims 1
%0: f32[64, 64]@[64, 1] = input "x"
%1: f32[64, 64]@[64, 1] = input "y"
%2: f32[64, 64]@[64, 1] = extern(%1, %1; is_contraction=true, node=0, op="aten.mm.default")
%3: f32[64, 64]@[64, 1] = extern(%0, %0; is_contraction=true, node=1, op="aten.mm.default")
%4: f32[64, 64] = exp(%3)
%5: f32[64, 64]@[64, 1] = extern(%4, %3; is_contraction=true, node=2, op="aten.mm.default")
%6: f32[64, 64] = exp(%5)
%7: f32[64, 64]@[64, 1] = extern(%6, %2; is_contraction=true, node=3, op="aten.mm.default")
return %7: f32[64, 64]@[64, 1]
"""


@pytest.mark.golden
def test_a_value_that_is_needed_late_is_made_late() -> None:
    assert_golden(
        before_and_after("order-steps", MADE_EARLY),
        """\
-- before order-steps: fusion
extern aten.mm.default -> %2
extern aten.mm.default -> %3
group: for v4.x0 in 64, for v4.x1 in 64
  %4[v4.x0, v4.x1]
  reads %3[v4.x0, v4.x1]
extern aten.mm.default -> %5
group: for v6.x0 in 64, for v6.x1 in 64
  %6[v6.x0, v6.x1]
  reads %5[v6.x0, v6.x1]
extern aten.mm.default -> %7
stored: %4, %6
refused: %4 with %6: another kernel or extern step lies between them
-- after: fusion
extern aten.mm.default -> %3
group: for v4.x0 in 64, for v4.x1 in 64
  %4[v4.x0, v4.x1]
  reads %3[v4.x0, v4.x1]
extern aten.mm.default -> %5
group: for v6.x0 in 64, for v6.x1 in 64
  %6[v6.x0, v6.x1]
  reads %5[v6.x0, v6.x1]
extern aten.mm.default -> %2
extern aten.mm.default -> %7
stored: %4, %6
refused: %4 with %6: another kernel or extern step lies between them
note: order: 5 steps moved, so that 49152 bytes are alive at most instead of 65536
""",
    )


def two_branches(op: str, *, is_contraction: bool) -> Graph:
    """An extern result that is needed at the end, and a chain of two products."""
    make = Maker()
    x = make.add_input(tensor(64, 64))
    kind = tensor_with_strides(64, 64)
    (early,) = make.add_extern(op, 0, [x, x], [kind], is_contraction=is_contraction)
    y = x
    for number in (1, 2):
        (y,) = make.add_extern(op, number, [y, x], [kind], is_contraction=is_contraction)
        y = make.add("exp", y)
    return make.returning(make.add("add", early, y))


def test_contractions_may_change_their_order() -> None:
    program = program_of(two_branches("aten.mm.default", is_contraction=True))
    assert [step.node for step in extern_calls(program)] == [1, 2, 0]


def test_other_extern_steps_keep_their_order() -> None:
    program = program_of(two_branches("aten.dist_like.default", is_contraction=False))
    assert [step.node for step in extern_calls(program)] == [0, 1, 2]


def test_a_value_in_the_cache_does_not_wait_for_its_reader() -> None:
    make = Maker()
    x = make.add_input(tensor(64, 64))
    kind = tensor_with_strides(64, 64)
    (small,) = make.add_extern(
        "aten.mm.default", 0, [x, x], [tensor_with_strides(4, 4)], is_contraction=True
    )
    (early,) = make.add_extern("aten.mm.default", 1, [small, x], [kind], is_contraction=True)
    y = x
    for number in (2, 3):
        (y,) = make.add_extern("aten.mm.default", number, [y, x], [kind], is_contraction=True)
        y = make.add("exp", y)
    program = program_of(make.returning(make.add("add", early, y)))
    order = [step.node for step in extern_calls(program)]
    assert order.index(1) == order.index(0) + 1


def before_order(graph: Graph) -> tuple[Materialization, Fusion]:
    facts = given_facts(graph, TARGET)
    for step in PASSES:
        if step.name == "order-steps":
            break
        facts[step.gives] = step.run(*(facts[name] for name in step.needs))
    chosen, fusion = facts["chosen"], facts["fusion"]
    assert isinstance(chosen, Materialization)
    assert isinstance(fusion, Fusion)
    return chosen, fusion


def peak(chosen: Materialization, fusion: Fusion) -> int:
    memories = Memories(chosen)
    lives = memories.lives(memories.group_uses(fusion.steps, fusion.stored))
    made = [memory for memory in lives if memories.kind(memory) in MADE_KINDS]
    sizes = {memory: memories.likely_bytes(memory) for memory in made}
    return max(live_bytes(lives, sizes, len(fusion.steps)))


@given(case=cases())
@settings(NO_DEADLINE, max_examples=examples(60))
def test_no_order_needs_more_memory_than_the_old_one(case: Case) -> None:
    chosen, fusion = before_order(case.graph)
    ordered = order_steps(chosen, fusion, TARGET)
    assert sorted(map(id, ordered.steps)) == sorted(map(id, fusion.steps))
    if ordered is not fusion:
        assert peak(chosen, ordered) < peak(chosen, fusion)


def test_launches_of_a_program_are_as_many_as_before() -> None:
    program = program_of(two_branches("aten.mm.default", is_contraction=True))
    assert sum(isinstance(step, Launch) for step in program.plan.steps) == 2
