"""Results of f16 and bf16 are as exact as eager's, for every value of the input."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling
from codegen_svc.precision.narrow_functions import narrow_functions, with_narrow_functions
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.narrow_cases import (
    CASES,
    DTYPES,
    EVERY,
    GATED,
    WITH_BIAS,
    Function,
    Precise,
    check_gated,
    check_result,
    every_value,
    numbers,
)
from tests.support.single_operator import to_numpy
from tests.support.traced_graphs import traced_one
from tests.support.triton_cases import interpreter_case
from tests.support.triton_interpreter import Case, run_interpreted

TARGET = target_facts("cuda:sm_90a")
WHOLE = Tiling(EVERY, EVERY, 0, False, 32)
ROUNDED = """

@triton.jit
def kf_rounded(x):
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(x != x, x, rounded.to(tl.float32, bitcast=True))
"""


def kernel_of(function: Function, *args: torch.Tensor) -> Kernel:
    """The only kernel of a function for an H100."""
    with torch.no_grad():
        graph = traced_one(function, *args).graph
    lowered = decompose_to_prims(graph, max_sorted_elems=TARGET.max_sorted_elems)
    (kernel,) = optimize(lowered.graph, TARGET).program.kernels
    return kernel


def _with_f32(launch: Case) -> Case:
    """The launch with buffers of f32, because the interpreter errs at subnormal and infinite bf16.

    Roundings to bf16 within the kernel stay, as operations on bits.
    """
    text = re.sub(r"(\w+)\.to\(tl\.bfloat16\)", r"kf_rounded(\1)", launch.source.text)
    head, module = text.split("import triton.language as tl\n")
    source = replace(launch.source, text=f"{head}import triton.language as tl\n{ROUNDED}{module}")
    return replace(
        launch, source=source, buffers=tuple(b.astype(np.float32) for b in launch.buffers)
    )


def result_of(case: Precise, *args: torch.Tensor) -> torch.Tensor:
    """What the case's kernel computes."""
    kernel = kernel_of(case.function, *args)
    assert narrow_functions(with_narrow_functions(kernel)) == case.forms
    inputs = iter(args)
    buffers = {
        p.name: to_numpy(next(inputs) if p.access is Access.READ else torch.zeros_like(args[0]))
        for p in kernel.params
    }
    (result,) = run_interpreted([_with_f32(interpreter_case(kernel, buffers, {}, WHOLE))])
    assert not isinstance(result, str), result
    return torch.from_numpy(np.asarray(result[-1], np.float32)).to(args[0].dtype)


def check(case: Precise, *args: torch.Tensor) -> None:
    """At no value is the kernel more than half a unit farther from float64 than eager is."""
    check_result(case, result_of(case, *args), *args)


FLUSHED = """def kf_flushing_{name}(x):
    result = {plain}
    return tl.where(tl.abs(result) < 1.1754943508222875e-38, 0.0, result)
"""


def _without_assembly(text: str, names: Iterable[str]) -> str:
    """The source with what PTX's instructions compute, rounded better than they do."""
    for name in names:
        plain = {"exp2": "tl.exp2(x)", "reciprocal": "1.0 / x"}[name]
        written = FLUSHED.format(name=name, plain=plain)
        head = f"def kf_flushing_{name}(x):"
        before, _, after = text.partition(head)
        assert after, head
        text = before + written + after.partition("    )\n")[2]
    return text


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_form_of_silu_with_a_flushing_exponential_keeps_the_limit(dtype: torch.dtype) -> None:
    x = every_value(dtype)
    kernel = kernel_of(F.silu, x)
    source = emit_triton(kernel, WHOLE, scalar_rules(TARGET, kernel))
    source = replace(source, text=_without_assembly(source.text, ("exp2", "reciprocal")))
    buffers = {p.name: to_numpy(x if p.access is Access.READ else x * 0) for p in kernel.params}
    launch = replace(interpreter_case(kernel, buffers, {}, WHOLE), source=source)
    (result,) = run_interpreted([_with_f32(launch)])
    assert not isinstance(result, str), result
    got = torch.from_numpy(np.asarray(result[-1], np.float32)).to(dtype)
    check_result(CASES["silu"], got, x)


def _shares(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x.view(-1, 2), -1).flatten()


@pytest.mark.parametrize("dtype", DTYPES)
def test_shares_of_a_softmax_keep_the_limit_down_to_the_smallest_number(dtype: torch.dtype) -> None:
    values = every_value(dtype)
    exponents = -torch.where(values.isfinite(), values, 0.0).abs()
    x = torch.stack((torch.zeros_like(exponents), exponents), -1)
    kernel = kernel_of(lambda rows: F.softmax(rows, -1), x)
    rows = Tiling(len(x), len(x), 2, True, 32)
    source = emit_triton(kernel, rows, scalar_rules(TARGET, kernel))
    assert "kf_narrow_exp_share(" in source.text
    source = replace(source, text=_without_assembly(source.text, ("exp2",)))
    buffers = {p.name: to_numpy(x if p.access is Access.READ else x * 0) for p in kernel.params}
    launch = replace(interpreter_case(kernel, buffers, {}, rows), source=source)
    (result,) = run_interpreted([_with_f32(launch)])
    assert not isinstance(result, str), result
    got = torch.from_numpy(np.asarray(result[-1], np.float32)).to(dtype)
    case = Precise(_shares, lambda x: _shares(x.double()), ())
    check_result(case, got.flatten(), x.flatten())


def _slow_but_one(names: Iterable[str]) -> list[object]:
    """GELU as it is; the others as slow, because each takes half a second."""
    return [
        name if name == "gelu" else pytest.param(name, marks=pytest.mark.slow) for name in names
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", _slow_but_one(CASES))
def test_every_value_is_within_half_a_unit_of_eagers_error(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], every_value(dtype))


@pytest.mark.slow  # half a second for each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WITH_BIAS)
def test_with_a_bias_every_value_is_too(name: str, dtype: torch.dtype) -> None:
    check(WITH_BIAS[name], every_value(dtype), numbers(dtype))


@pytest.mark.slow  # half a second for each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATED)
def test_in_a_product_every_value_is_within_half_a_unit_of_eagers_error(
    name: str, dtype: torch.dtype
) -> None:
    check_gated(GATED[name], result_of, dtype)
