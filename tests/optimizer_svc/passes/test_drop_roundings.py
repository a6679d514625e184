"""Kernels round values of 16 bits where memory or a decision sees them, not after each operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Compute, Store, needed_statements
from kernelfarm.ir.program_ir import Program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.optimizer_passes import before_and_after
from tests.support.traced_graphs import traced_one

NARROW = (torch.bfloat16, torch.float16)

A_SUM_AND_A_COMPARISON = """\
graph prims 1
%0: f32[8]@[1] = input "x"
%1: f32[8]@[1] = input "y"
%2: f32[8] = mul(%0, %1) from [0]
%3: bf16[8] = convert(%2; dtype=bf16) from [0]
%4: f32[8] = convert(%3; dtype=f32) from [1]
%5: f32[8] = sub(%0, %1) from [2]
%6: bf16[8] = convert(%5; dtype=bf16) from [2]
%7: f32[8] = convert(%6; dtype=f32) from [3]
%8: bool[8] = gt(%7, %1) from [3]
%9: bf16[8] = convert(%1; dtype=bf16, is_cast=true) from [4]
%10: f32[8] = convert(%9; dtype=f32) from [5]
%11: f32[8] = add(%4, %10) from [5]
%12: f32[8] = where(%8, %7, %11) from [5]
%13: bf16[8] = convert(%12; dtype=bf16) from [5]
return %13: bf16[8]@[1]
"""


@pytest.mark.golden
def test_a_value_that_is_compared_is_rounded_and_others_are_not() -> None:
    assert_golden(
        before_and_after("drop-roundings", A_SUM_AND_A_COMPARISON),
        """\
-- before drop-roundings: chosen
storage %0: input 0, f32[8]@[1]
storage %1: input 1, f32[8]@[1]
storage %13: output 0, bf16[8]@[1]
members: %13
output 0: %13 as [8]@[1]
-- after: chosen
storage %0: input 0, f32[8]@[1]
storage %1: input 1, f32[8]@[1]
storage %13: output 0, bf16[8]@[1]
members: %13
unrounded: %3
output 0: %13 as [8]@[1]
note: roundings: kernels that do not store them keep 1 values of 16 bits in f32
""",
    )


def program(function: Callable[..., object], *args: torch.Tensor) -> Program:
    graph = decompose_to_prims(traced_one(function, *args).graph).graph
    return optimize(graph, target_facts("cpu:x86-64-v3")).program


def roundings(function: Callable[..., object], *args: torch.Tensor) -> int:
    """How often the kernels of a function round to 16 bits."""
    return sum(
        isinstance(statement, Compute)
        and statement.op == "convert"
        and statement.dtype in (DType.BF16, DType.F16)
        for kernel in program(function, *args).kernels
        for statement in kernel.body
    )


def cubic(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x * y + x) * y - x) / (y + 3)


X, Y = torch.randn(64, dtype=torch.bfloat16), torch.rand(64, dtype=torch.bfloat16)


def test_a_chain_of_arithmetic_has_one_rounding() -> None:
    assert roundings(cubic, X, Y) == 1


def test_a_result_that_is_stored_is_rounded_for_its_readers_too() -> None:
    """What a program returns, and what it computes from it, fit together."""

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x * y
        return product, product - x * y.abs()

    x, y = X.abs(), Y
    assert roundings(both, x, y) == 2
    first, second = compile_here(traced_one(both, x, y), Counts())([x, y])
    torch.testing.assert_close(first.float(), (x * y).float(), rtol=0, atol=0)
    expected = (first.float() - x.float() * y.float()).bfloat16()
    torch.testing.assert_close(second, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "decide",
    [
        lambda t: t > 0,
        lambda t: t.floor(),
        lambda t: t.to(torch.int32),
        lambda t: t.cumsum(0),
        lambda t: t.sort().values,
        lambda t: t.argmax(),
        lambda t: t.amax(),
        lambda t: t.isinf(),
        lambda t: t.float(),
    ],
)
def test_decisions_and_f32_in_memory_see_what_eager_sees(
    decide: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    function = lambda x, y: decide(x * y + x)  # noqa: E731
    torch.manual_seed(0)
    x, y = torch.randn(2, 512, dtype=torch.bfloat16)
    (ours,) = compile_here(traced_one(function, x, y), Counts())([x, y])
    eager = function(x, y)
    assert roundings(function, x, y) >= 1
    torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


def test_a_cast_of_the_program_rounds() -> None:
    def quantized(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.bfloat16).float() * 3).to(torch.bfloat16)

    x = torch.randn(512)
    (ours,) = compile_here(traced_one(quantized, x), Counts())([x])
    torch.testing.assert_close(ours, quantized(x), rtol=0, atol=0)


def gelu_gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """As autograd writes the gradient of the GELU that GPT-2's Python code states."""
    inner = 0.79788456 * (x + 0.044715 * x * x * x)
    tanh = inner.tanh()
    slope = 0.79788456 * (1 + 3 * 0.044715 * x * x)
    return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)


def softmax_by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scores = x * y * 8
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def normalized(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(functional.silu(x * y) + x, (x.shape[-1],))


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("function", [cubic, gelu_gradient, softmax_by_hand, normalized])
def test_results_are_closer_to_the_exact_ones_than_eager_s(
    function: Callable[..., torch.Tensor], dtype: torch.dtype, target: str
) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(64, 257).to(dtype), torch.randn(64, 257).to(dtype).abs()
    run = compile_here(traced_one(function, x, y), Counts(), target_facts(target))
    (ours,), eager = run([x, y]), function(x, y)
    exact = function(x.double(), y.double())
    errors = [(found.double() - exact).abs().mean().item() for found in (ours, eager)]
    assert ours.dtype is dtype
    assert errors[0] < errors[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_choice_between_narrow_values_is_not_rounded(dtype: torch.dtype) -> None:
    """It is one of them: of three pieces, each is widened once, and only the result is rounded."""

    def joined(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b, c], 1).exp()

    args = [torch.randn(4, width).to(dtype) for width in (5, 6, 7)]
    graph = decompose_to_prims(traced_one(joined, *args).graph).graph
    (kernel,) = optimize(graph, target_facts("cpu:x86-64-v3")).program.kernels
    stored = [s.value for s in kernel.body if isinstance(s, Store)]
    needed = [kernel.body[number] for number in needed_statements(kernel, stored)]
    rounded = [s for s in needed if isinstance(s, Compute) and s.dtype.itemsize_bytes == 2]
    assert len(rounded) == 1
