"""Kernels of many mathematical functions stay small, and what compiling costs is told before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.backends.triton_called_math import calls_math
from codegen_svc.cost_estimate import estimated_cost_s, inlined_math_s
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Literal, Load, Param, Store
from kernelfarm.targets import target_facts

BACKENDS = {"cuda:sm_90a": CUDA, "rocm:gfx942": ROCM}
TEXT = {"cuda:sm_90a": "ptx", "rocm:gfx942": "amdgcn"}
BINARY = {"cuda:sm_90a": "cubin", "rocm:gfx942": "hsaco"}


def chain(op: str, count: int, dtype: DType = DType.F32) -> Kernel:
    """out = op(op(... op(in)))."""
    extent, x = as_expr(1024), symbol("x0")
    return Kernel(
        name=f"chain_of_{op}",
        params=(
            Param("in0", dtype, extent, Access.READ),
            Param("out0", dtype, extent, Access.WRITE),
        ),
        sizes=(),
        outer=(Axis("x0", extent),),
        reduction=(),
        body=(
            Load("in0", x),
            *(Compute(op, (number,), dtype) for number in range(count)),
            Store("out0", x, count),
        ),
    )


def sizes(kernel: Kernel, target: str) -> Mapping[str, int]:
    """Bytes of each stage of the general variant."""
    variant = BACKENDS[target].build(kernel, target_facts(target))[-1]
    return {stage.name: len(stage.content) for stage in variant.stages}


@pytest.mark.parametrize("target", BACKENDS)
def test_code_grows_by_calls_and_not_by_copies_of_functions(target: str) -> None:
    """Three tangents are still copied for each element; with sixteen the text is shorter."""
    few = chain("tan", 3 if target.startswith("cuda") else 8)
    assert not calls_math(few, target.partition(":")[0])
    assert calls_math(chain("tan", 16), target.partition(":")[0])
    few, many = sizes(few, target), sizes(chain("tan", 16), target)
    assert many[TEXT[target]] < few[TEXT[target]]
    assert many[BINARY[target]] < 2 * few[BINARY[target]]


@pytest.mark.slow
@pytest.mark.parametrize("target", BACKENDS)
def test_250_tangents_are_a_small_binary(target: str) -> None:
    assert sizes(chain("tan", 250), target)[BINARY[target]] < 1 << 20


def test_a_called_sine_is_one_function_of_the_binary() -> None:
    variant = CUDA.build(chain("tan", 16), target_facts("cuda:sm_90a"))[-1]
    ptx = next(stage.content.decode() for stage in variant.stages if stage.name == "ptx")
    assert ptx.count("\n.func ") == 4, "two declared, two defined"
    assert ptx.count("__nv_sinf, ") >= 16
    assert "spilled" not in " ".join(variant.notes) or variant.launch.spills > 0


@pytest.mark.parametrize("op", ["exp", "sin", "erf", "tanh", "log", "neg"])
def test_a_handful_of_functions_is_inlined_as_ever(op: str) -> None:
    for vendor in ("cuda", "rocm"):
        assert not calls_math(chain(op, 8), vendor)


def test_the_estimate_grows_with_operations_and_knows_costly_ones() -> None:
    for vendor in ("cpu", "cuda", "rocm", "ascend"):
        few, many = (estimated_cost_s(chain("sin", n), vendor) for n in (2, 12))
        assert 0 < few < many
        assert estimated_cost_s(chain("neg", 12), vendor) <= many
    assert inlined_math_s(chain("tan", 10, DType.F64), "cuda") == 2 * inlined_math_s(
        chain("tan", 10), "cuda"
    )


def test_a_power_that_is_multiplied_out_costs_little() -> None:
    for exponent, is_costly in ((3.0, False), (0.5, False), (2.5, True)):
        kernel = chain("neg", 1)
        power = (Literal(DType.F32, exponent), Compute("pow", (0, 1), DType.F32))
        body = (kernel.body[0], *power, Store("out0", symbol("x0"), 2))
        powered = replace(kernel, body=body)
        assert (inlined_math_s(powered, "cuda") > 0) == is_costly


def test_models_kernels_are_quick_and_floods_of_functions_are_slow() -> None:
    for vendor in ("cpu", "cuda", "rocm", "ascend"):
        assert estimated_cost_s(chain("exp", 20), vendor) < 4.0
    assert estimated_cost_s(chain("tan", 250), "cuda") > 4.0
    assert estimated_cost_s(chain("sin", 1000), "cpu") > 4.0
