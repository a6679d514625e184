"""Functions at the precision of 16-bit results on processors, for every value of the input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from codegen_svc.backends.llvm_toolchain import code_target
from codegen_svc.emitters.llvm.kernel import emit_llvm
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.narrow_cases import (
    CASES,
    DTYPES,
    GATED,
    WITH_BIAS,
    Precise,
    check_gated,
    check_result,
    every_value,
    numbers,
)
from tests.support.traced_graphs import traced_one

pytestmark = pytest.mark.usefixtures("each_cpu_target")
# Processors compute exponentials, too.
FORMS = {"silu": ("exp",), "exp": ("exp",)}


def result_of(case: Precise, *args: torch.Tensor) -> torch.Tensor:
    """What this machine's kernel computes."""
    with torch.no_grad():
        run = compile_here(traced_one(case.function, *args), Counts())
        (found,) = run([*args])
    return found


def source_of(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> str:
    facts = target_facts(host_cpu_target())
    with torch.no_grad():
        graph = traced_one(function, *args).graph
    (kernel,) = optimize(decompose_to_prims(graph).graph, facts).program.kernels
    return emit_llvm(kernel, code_target(facts))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_every_value_is_within_half_a_unit_of_eagers_error(name: str, dtype: torch.dtype) -> None:
    case, x = CASES[name], every_value(dtype)
    check_result(case, result_of(case, x), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WITH_BIAS)
def test_with_a_bias_every_value_is_too(name: str, dtype: torch.dtype) -> None:
    args = every_value(dtype), numbers(dtype)
    check_result(WITH_BIAS[name], result_of(WITH_BIAS[name], *args), *args)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATED)
def test_in_a_product_every_value_is_within_half_a_unit_of_eagers_error(
    name: str, dtype: torch.dtype
) -> None:
    check_gated(GATED[name], result_of, dtype)


@pytest.mark.parametrize("name", CASES)
def test_kernels_state_which_functions_are_as_precise_as_their_results(name: str) -> None:
    case = CASES[name]
    forms = FORMS.get(name, case.forms)
    text = source_of(case.function, every_value(torch.bfloat16))
    stated = f"; at the precision of f16 and bf16 results: {', '.join(forms)}\n"
    assert (stated in text) is bool(forms)
    assert "at the precision" not in source_of(case.function, torch.randn(64))
