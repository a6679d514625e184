"""Kernels store what products read in another order of axes; results are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import contiguous_strides
from kernelfarm.ir.loop_ir import Compute, Reduce
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing, recording

H100 = target_facts("cuda:sm_90a")
BATCH, TOKENS, HEADS, GROUPS, WIDTH = 2, 12, 4, 2, 8


def _attended(x: Tensor, q: Tensor, k: Tensor, v: Tensor, gain: Tensor) -> Tensor:
    """Heads in groups, scaled after their projections, as with rotary positions."""
    query, key, value = (
        functional.linear(x, w).view(BATCH, TOKENS, -1, WIDTH).transpose(1, 2) for w in (q, k, v)
    )
    key, value = (
        t[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)
        for t in (key * gain, value)
    )
    return functional.scaled_dot_product_attention(query * gain, key, value, is_causal=True)


def _operands() -> list[Tensor]:
    width, narrow = HEADS * WIDTH, GROUPS * WIDTH
    shapes = ((BATCH, TOKENS, width), (width, width), (narrow, width), (narrow, width), (WIDTH,))
    random = torch.Generator().manual_seed(0)
    found = [torch.randn(shape, generator=random) for shape in shapes]
    return [each.requires_grad_() for each in found]


def _gradients(function: Callable[..., Tensor], operands: list[Tensor]) -> None:
    function(*operands).square().sum().backward()  # type: ignore[no-untyped-call]  # torch's own


@pytest.mark.parametrize("is_like_operands", [False, True])
def test_gradients_of_heads_are_stored_as_the_products_read_them(
    is_like_operands: bool,
) -> None:
    facts = target_facts(host_cpu_target())
    facts = replace(facts, gradients_like_operands=is_like_operands)
    counts: list[Counts] = []

    def compiled(captured: CapturedGraph, _: torch.fx.GraphModule) -> Callable[..., Any]:
        counts.append(Counts())
        runner = compile_here(captured, counts[-1], facts)
        return lambda *args: runner(args)

    expected = _operands()
    _gradients(_attended, expected)
    given = _operands()
    torch._dynamo.reset()
    _gradients(torch.compile(_attended, backend=capturing(compiled)), given)
    for found, wanted in zip(given, expected, strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-4)
        assert found.grad is not None and wanted.grad is not None
        assert found.grad.stride() == wanted.grad.stride()
    # The heads' gradients and the gain's; none that only copies.
    assert counts[-1].launches == 4


def test_no_kernel_of_a_gpu_only_copies_the_gradients_of_heads() -> None:
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    _gradients(torch.compile(_attended, backend=recording(found)), _operands())
    program = optimize(decompose_to_prims(found[-1].graph).graph, H100).program
    copies = [
        kernel.name
        for kernel in program.kernels
        if not any(isinstance(statement, Compute | Reduce) for statement in kernel.body)
    ]
    assert copies == []
    (attention,) = [
        step
        for step in program.plan.steps
        if isinstance(step, ExternCall) and step.op == "kernelfarm.attention_backward.default"
    ]
    # Keys and values were repeated for groups: their memory is by heads, and so is the gradients'.
    _, key, value, _ = attention.results
    by_heads = contiguous_strides(tuple(map(as_expr, (BATCH, HEADS, TOKENS, WIDTH))))
    assert key is not None and value is not None
    assert key.strides == value.strides == by_heads
