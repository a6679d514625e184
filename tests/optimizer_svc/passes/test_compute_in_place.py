"""Results in the memory of operands that end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import Graph, SizeSymbol
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.plan_memory import PlanMemory, plan_memory
from kernelfarm.ir.program_ir import BufferKind, Launch, Program
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.kernels.in_place import Pair, in_place_pairs
from optimizer_svc.passes.compute_in_place import compute_in_place
from optimizer_svc.pipeline import PASSES, given_facts
from tests.support.examples import examples
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, program_of, tensor, tensor_with_strides
from tests.support.random_graphs import Case, cases, run_extern
from tests.support.random_updates import updating_cases

TARGET = target_facts("cpu:x86-64-v3")
NO_DEADLINE = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True
)

AROUND_A_PRODUCT = """\
graph prims 1
%0: f32[256, 256]@[256, 1] = input "x"
%1: f32[256, 256]@[256, 1] = extern(%0, %0; is_contraction=true, node=0, op="aten.mm.default")
%2: f32[256, 256] = exp(%1)
%3: f32[256, 256]@[256, 1] = extern(%2, %0; is_contraction=true, node=1, op="aten.mm.default")
%4: f32[256, 256] = neg(%3)
return %4: f32[256, 256]@[256, 1]
"""


@pytest.mark.golden
def test_a_result_takes_the_memory_of_an_extern_result_but_an_output_has_its_own() -> None:
    assert_golden(
        before_and_after("compute-in-place", AROUND_A_PRODUCT),
        """\
-- before compute-in-place: built
kernel fused_exp_NAME
param in in0: f32[65536]
param out out0: f32[65536]
for d0 in 65536
  %0: f32 = load in0[d0]
  %1: f32 = exp %0
  store out0[d0] = %1
kernel fused_neg_NAME
param in in0: f32[65536]
param out out0: f32[65536]
for d0 in 65536
  %0: f32 = load in0[d0]
  %1: f32 = neg %0
  store out0[d0] = %1
step: extern aten.mm.default -> %1
step: launch 0(%1, %2)
step: extern aten.mm.default -> %3
step: launch 1(%3, %4)
-- after: built
kernel fused_exp_NAME
param inout inout0: f32[65536]
for d0 in 65536
  %0: f32 = load inout0[d0]
  %1: f32 = exp %0
  store inout0[d0] = %1
kernel fused_neg_NAME
param in in0: f32[65536]
param out out0: f32[65536]
for d0 in 65536
  %0: f32 = load in0[d0]
  %1: f32 = neg %0
  store out0[d0] = %1
step: extern aten.mm.default -> %1
step: launch 0(%1)
step: extern aten.mm.default -> %3
step: launch 1(%3, %4)
note: kernel fused_exp_NAME: 1 result in the memory of operands that are not read again (launches: 1)
""",
    )


def kernel_of(text: str) -> Kernel:
    return parse_kernel(text)


def test_only_equal_indices_make_a_pair() -> None:
    kernel = kernel_of("""\
kernel fused
param in in0: f32[64]
param in in1: f32[64]
param in in2: f32[8]
param out out0: f32[64]
for d0 in 8
for d1 in 8
  %0: f32 = load in0[8*d0 + d1]
  %1: f32 = load in1[d0 + 8*d1]
  %2: f32 = load in2[d0]
  %3: f32 = add %0, %1
  %4: f32 = add %3, %2
  store out0[8*d0 + d1] = %4
""")
    assert in_place_pairs(kernel) == (Pair(result=3, operand=0),)


def test_an_operand_that_is_read_at_two_indices_is_in_no_pair() -> None:
    kernel = kernel_of("""\
kernel fused
param in in0: f32[64]
param out out0: f32[64]
for d0 in 64
  %0: f32 = load in0[d0]
  %1: f32 = load in0[63 - d0]
  %2: f32 = add %0, %1
  store out0[d0] = %2
""")
    assert in_place_pairs(kernel) == ()


def in_place_program(graph: Graph) -> Program:
    """The program, with results of every size in the memory of operands."""
    facts = given_facts(graph, TARGET)
    for step in PASSES:
        if step.name == "report-fusion":
            break
        more = {"least_bytes": 0} if step.run is compute_in_place else {}
        facts[step.gives] = step.run(*(facts[name] for name in step.needs), **more)
    program: Program = facts["program"]
    verify_program(program)
    return program


def memory_of(program: Program) -> PlanMemory:
    return plan_memory(program.plan, {})


def updating_params(program: Program) -> int:
    return sum(
        param.access is Access.READ_WRITE
        for step in program.plan.steps
        if isinstance(step, Launch)
        for param in program.kernels[step.kernel].params
    )


def chain_of_products(count: int) -> Graph:
    make = Maker()
    x = y = make.add_input(tensor(512, 512))
    for number in range(count):
        kind = tensor_with_strides(512, 512)
        (y,) = make.add_extern("aten.mm.default", number, [y, x], [kind], is_contraction=True)
        y = make.add("exp", y)
    return make.returning(y)


def test_a_chain_of_products_needs_no_arena() -> None:
    program = program_of(chain_of_products(4))
    assert program.plan.arena_bytes == 0
    # Two of the products are alive at the same time, or the last one and the output.
    assert memory_of(program).peak_bytes == 2 * 512 * 512 * 4


def test_an_operand_that_is_read_again_keeps_its_memory() -> None:
    make = Maker()
    x = make.add_input(tensor(256, 256))
    kind = tensor_with_strides(256, 256)
    (y,) = make.add_extern("aten.mm.default", 0, [x, x], [kind], is_contraction=True)
    z = make.add("exp", y)
    (w,) = make.add_extern("aten.mm.default", 1, [z, y], [kind], is_contraction=True)
    program = program_of(make.returning(w))
    assert updating_params(program) == 0


def test_a_returned_operand_keeps_its_memory() -> None:
    make = Maker()
    x = make.add_input(tensor(256, 256))
    kind = tensor_with_strides(256, 256)
    (y,) = make.add_extern("aten.mm.default", 0, [x, x], [kind], is_contraction=True)
    z = make.add("exp", y)
    (w,) = make.add_extern("aten.mm.default", 1, [z, x], [kind], is_contraction=True)
    program = program_of(make.returning(y, w))
    assert updating_params(program) == 0


def test_a_kernel_with_several_launches_gets_another_form_only_where_the_peak_is() -> None:
    make = Maker()
    x = make.add_input(tensor(256, 256))
    kind = tensor_with_strides(256, 256)
    first = make.add("exp", x)  # an input keeps its elements
    (y,) = make.add_extern("aten.mm.default", 0, [first, x], [kind], is_contraction=True)
    (z,) = make.add_extern(
        "aten.mm.default", 1, [make.add("exp", y), x], [kind], is_contraction=True
    )
    program = program_of(make.returning(z))
    assert updating_params(program) <= 1
    assert memory_of(program).peak_bytes == 2 * 256 * 256 * 4


def test_a_dynamic_size_is_no_obstacle() -> None:
    rows = symbol("s0")
    make = Maker([SizeSymbol("s0", 2, None)])
    x = make.add_input(tensor(rows, 64))
    w = make.add_input(tensor(64, 64))
    kind = tensor_with_strides(rows, 64)
    (y,) = make.add_extern("aten.mm.default", 0, [x, w], [kind], is_contraction=True)
    (z,) = make.add_extern(
        "aten.mm.default", 1, [make.add("exp", y), w], [kind], is_contraction=True
    )
    program = program_of(make.returning(z))
    assert updating_params(program) == 1
    assert not [b for b in program.plan.buffers if b.kind is BufferKind.TEMPORARY]


@given(case=cases())
@settings(NO_DEADLINE, max_examples=examples(80))
def test_programs_in_place_compute_what_their_graphs_mean(case: Case) -> None:
    check(case)


@given(case=cases(symbolic=True))
@settings(NO_DEADLINE, max_examples=examples(40))
def test_symbolic_programs_in_place_compute_what_their_graphs_mean(case: Case) -> None:
    check(case)


@given(case=updating_cases())
@settings(NO_DEADLINE, max_examples=examples(40))
def test_programs_that_update_inputs_compute_what_their_graphs_mean(case: Case) -> None:
    check(case)


def check(case: Case) -> None:
    expected = run_graph(case.graph, case.inputs, run_extern)
    program = in_place_program(case.graph)
    found = run_program(program, case.inputs, run_extern)
    for reference, got in zip(expected, found, strict=True):
        # Fused loops sum in another order than NumPy does. Everything else is the same arithmetic.
        rtol = 2e-3 if reference.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, reference, rtol=rtol, atol=1e-6)
