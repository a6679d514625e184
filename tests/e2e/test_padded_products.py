"""Products that the plan pads, on a processor with the facts of one that needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.targets import ProductFacts, target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

WORDS = 203
PADDED = 208


def compiled(function: Callable[..., Any], plans: list[Any]) -> Callable[..., Any]:
    """The function, compiled for this processor as if its library needed rows of 16 bytes."""
    facts = replace(
        target_facts(host_cpu_target()), products=ProductFacts(16, 1.0), batched_products=None
    )

    def compile_graph(captured: CapturedGraph, _: Any) -> Any:
        runner = compile_here(captured, Counts(), facts)
        plans.append(runner.program.plan)
        return lambda *args: runner(args)

    torch._dynamo.reset()
    return torch.compile(function, backend=capturing(compile_graph))


def extents(plan: Any) -> list[list[str]]:
    """The extents of the results of the plan's products."""
    return [
        [str(extent) for extent in view.sizes]
        for step in plan.steps
        if isinstance(step, ExternCall)
        for view in step.results
        if view is not None
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_language_model_s_loss_and_gradients_are_those_of_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = nn.Linear(64, WORDS, bias=False).to(dtype)
    x = torch.randn(96, 64, dtype=dtype)
    words = torch.randint(WORDS, (96,))

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, weight).float(), words)

    def step(function: Callable[..., Any], kind: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [t.detach().to(kind).requires_grad_() for t in (x, head.weight)]
        found = function(*leaves)
        return found.detach(), *torch.autograd.grad(found, leaves)

    plans: list[Any] = []
    ours = step(compiled(loss, plans), dtype)
    eager, exact = step(loss, dtype), step(loss, torch.float64)
    for mine, theirs, true in zip(ours, eager, exact, strict=True):
        allowed = 2 * (theirs.double() - true).abs().max() + 1e-3 * true.abs().max()
        assert (mine.double() - true).abs().max() <= allowed
    assert ["96", str(PADDED)] in extents(plans[0])
    assert [str(PADDED), "64"] in extents(plans[1])


def test_logits_that_are_returned_have_eager_s_strides() -> None:
    plans: list[Any] = []
    head = nn.Linear(64, WORDS).bfloat16().requires_grad_(False)
    x = torch.randn(96, 64).bfloat16()
    found = compiled(head, plans)(x)
    assert found.stride() == (WORDS, 1)
    torch.testing.assert_close(found, head(x))
    assert extents(plans[0]) == [["96", str(PADDED)]]


def test_a_batch_of_products_takes_padded_operands() -> None:
    plans: list[Any] = []
    a, b = torch.randn(3, 72, WORDS).bfloat16(), torch.randn(3, WORDS, 64).bfloat16()

    def products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.exp() @ b

    found, exact = compiled(products, plans)(a, b), products(a.double(), b.double())
    errors = [(y.double() - exact).abs().max() for y in (found, products(a, b))]
    assert errors[0] <= 2 * errors[1]
    (call,) = (step for step in plans[0].steps if isinstance(step, ExternCall))
    assert str(call.args[0].sizes[2]) == str(PADDED)
