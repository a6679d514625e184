"""The estimate of the time that compiling a kernel takes."""

from __future__ import annotations

from dataclasses import replace

from codegen_svc.cost_estimate import calls_math, estimated_cost_s, inlined_math_s
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.loop_ir import Compute, Literal, Store
from kernelfarm.targets import CompileCost, all_vendors, vendor_facts
from tests.support.loop_kernels.chains import chain

NVIDIA = vendor_facts("cuda").compile_cost


def test_the_estimate_grows_with_operations_and_their_costs() -> None:
    for cost in (facts.compile_cost for facts in all_vendors().values()):
        few, many = (estimated_cost_s(chain("sin", n), cost) for n in (2, 12))
        assert 0 < few < many
        assert estimated_cost_s(chain("neg", 12), cost) <= many
    assert inlined_math_s(chain("tan", 10, DType.F64), NVIDIA) == 2 * inlined_math_s(
        chain("tan", 10), NVIDIA
    )


def test_a_power_that_is_multiplied_out_costs_little() -> None:
    for exponent, is_costly in ((3.0, False), (0.5, False), (2.5, True)):
        kernel = chain("neg", 1)
        power = (Literal(DType.F32, exponent), Compute("pow", (0, 1), DType.F32))
        body = (kernel.body[0], *power, Store("out0", symbol("x0"), 2))
        powered = replace(kernel, body=body)
        assert (inlined_math_s(powered, NVIDIA) > 0) == is_costly


def test_models_kernels_are_quick_and_floods_of_functions_are_slow() -> None:
    for cost in (facts.compile_cost for facts in all_vendors().values()):
        assert estimated_cost_s(chain("exp", 20), cost) < 4.0
    assert estimated_cost_s(chain("tan", 250), NVIDIA) > 4.0
    assert estimated_cost_s(chain("sin", 1000), vendor_facts("cpu").compile_cost) > 4.0


def test_a_vendor_that_states_no_costs_has_an_estimate_too() -> None:
    few, many = (estimated_cost_s(chain("sin", n), CompileCost()) for n in (2, 12))
    assert 0.1 <= few < many
    assert not calls_math(chain("tan", 250), CompileCost())
