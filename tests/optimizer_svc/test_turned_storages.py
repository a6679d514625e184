"""Kernels store what products read in another order of axes; results are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

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
