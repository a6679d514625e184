"""Kernels that use many mathematical functions call them, so their code stays small."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.cost_estimate import calls_math
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import CompileCost, target_facts, vendor_facts
from tests.support.loop_kernels.chains import chain

BACKENDS = {"cuda:sm_90a": CUDA, "rocm:gfx942": ROCM}
TEXT = {"cuda:sm_90a": "ptx", "rocm:gfx942": "amdgcn"}
BINARY = {"cuda:sm_90a": "cubin", "rocm:gfx942": "hsaco"}


def sizes(kernel: Kernel, target: str) -> Mapping[str, int]:
    """Bytes of each stage of the general variant."""
    variant = BACKENDS[target].build(kernel, target_facts(target))[-1]
    return {stage.name: len(stage.content) for stage in variant.stages}


def cost_of(target: str) -> CompileCost:
    return vendor_facts(target_facts(target).vendor).compile_cost


# slow for AMD, whose assembler takes seconds for it; the emitted text is that for NVIDIA.
@pytest.mark.parametrize(
    "target", ["cuda:sm_90a", pytest.param("rocm:gfx942", marks=pytest.mark.slow)]
)
def test_code_grows_by_calls_and_not_by_copies_of_functions(target: str) -> None:
    """Three tangents are still copied for each element; with sixteen the text is shorter."""
    few = chain("tan", 3 if target.startswith("cuda") else 8)
    assert not calls_math(few, cost_of(target))
    assert calls_math(chain("tan", 16), cost_of(target))
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
def test_few_functions_are_inlined(op: str) -> None:
    for target in BACKENDS:
        assert not calls_math(chain(op, 8), cost_of(target))
