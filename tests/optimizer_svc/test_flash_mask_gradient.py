"""Gradients of masks of numbers by a template kernel, whose source an interpreter runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div, symbol
from kernelfarm.ir.graph_ir import contiguous_strides
from kernelfarm.ir.program_ir import ExternCall
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.flash_mask_gradient import TILE, flash_mask_gradient
from optimizer_svc.pipeline import OptimizeResult
from tests.support.attention_forms import TARGET, Form, traced_with_gradients
from tests.support.gradient_programs import (
    Layer,
    attended,
    compiled_for_hopper,
    gradients_by,
    optimized,
)
from tests.support.template_kernels import UNITS, constant, interpreted, templates

assert TARGET.flash_attention is not None
WITH_FEW = replace(TARGET, flash_attention=replace(TARGET.flash_attention, least_masked=1))
"""Kernels compute gradients of masks with any number of queries."""


def bias_of(form: Form, shape: tuple[int, ...]) -> Tensor:
    """Numbers of which a fifth hide keys; the first query of each sequence and head sees none."""
    torch.manual_seed(2)
    bias = torch.randn(shape).masked_fill(torch.rand(shape) < 0.2, -torch.inf)
    if len(shape) > 1 and shape[-2] > 1:
        bias[..., 0, :] = -torch.inf
    return bias.to(form.dtype)


def check(layer: Layer, operands: list[Tensor], form: Form) -> OptimizeResult:
    """Compares all gradients with those in float64; the program of the backward pass."""
    found = list[OptimizeResult]()
    torch.manual_seed(1)
    grad = torch.randn(form.batch, form.queries, form.heads * form.width).to(form.dtype)
    made = gradients_by(compiled_for_hopper(layer, found, WITH_FEW), operands, grad)
    wide = [x.double() if x.is_floating_point() else x for x in operands]
    for one, exact in zip(made, gradients_by(layer, wide, grad.double()), strict=True):
        assert one.dtype is form.dtype
        difference = (one.double() - exact).abs().max()
        assert difference <= 4 * UNITS[form.dtype] * exact.abs().max()
    plans = [result.program.plan for result in found]
    assert not any(isinstance(step, ExternCall) for plan in plans for step in plan.steps)
    return found[-1]


FEW = Form(batch=2, heads=4, groups=4, queries=70, keys=77, dtype=torch.float16)


@pytest.mark.parametrize(
    ("form", "shape", "parts"),
    [
        (Form(batch=24, heads=3, groups=3, queries=49, keys=49, width=32), (1, 3, 49, 49), 6),
        (Form(batch=4, heads=3, groups=3, queries=49, keys=49, width=32), (4, 3, 49, 49), 1),
        (Form(batch=2, heads=4, groups=2, queries=70, keys=77), (4, 70, 77), 1),
        (FEW, (2, 1, 70, 77), 1),
        (FEW, (70, 77), 2),
        (FEW, (2, 4, 1, 77), 1),
        (Form(batch=5, heads=4, groups=2, queries=130, keys=77, width=40), (77,), 15),
    ],
    ids=str,
)
def test_the_source_sums_over_what_shares_a_number(
    form: Form, shape: tuple[int, ...], parts: int
) -> None:
    backward = check(attended(form), [*form.operands(), bias_of(form, shape)], form)
    kernels = templates(backward.program)
    assert [k.template for k in kernels] == ["", "flash_gradients", ""]
    assert constant(kernels[-1], "PARTS") == parts
    report = dict(backward.stages)["report"]
    assert "attention: 1 of gradients, also of a mask, by kernels" in report
    steps = [line for line in report.splitlines() if line.startswith("step ")]
    assert len(steps) == len(backward.program.plan.steps)


@pytest.mark.parametrize("sizes", [(5, 70, 77), (2, 130, 64), (1, 3, 5)])
def test_numbers_of_sequences_queries_and_keys_may_vary(sizes: tuple[int, int, int]) -> None:
    """One kernel, whose launches have their sizes and steps as numbers."""
    heads, width, parts = 2, 32, 3
    batch, length, keys = map(symbol, ("b", "q", "s"))
    own, others = dense(batch, heads, length, width), dense(batch, heads, keys, width)
    named = {
        "query": own,
        "key": others,
        "value": others,
        "grad": own,
        "statistics": dense(batch, heads, 2, ceil_div(length, TILE) * TILE),
        "mask": dense(heads, length, keys),
    }
    kernel, numbers = flash_mask_gradient(named, (DType.F16, DType.F32), 0.5, parts)
    values = dict(zip(("b", "q", "s"), sizes, strict=True))
    torch.manual_seed(0)
    shapes = {name: [e.evaluate(values) for e in view.shape] for name, view in named.items()}
    given = {name: torch.randn(shape).half() for name, shape in shapes.items()}
    query, key, value, grad, _, mask = (tensor.double() for tensor in given.values())
    scores = query @ key.mT * 0.5 + mask
    shares, change = scores.softmax(-1), grad @ value.mT
    mean = (shares * change).sum(-1, keepdim=True)
    expected = (shares * (change - mean)).sum(0)
    statistics = torch.zeros(shapes["statistics"])
    statistics[:, :, 0] = torch.inf
    statistics[:, :, 0, : sizes[1]] = scores.logsumexp(-1) / math.log(2)
    statistics[:, :, 1, : sizes[1]] = mean.squeeze(-1)
    buffers = [tensor.numpy() for tensor in (given | {"statistics": statistics}).values()]
    made = np.full((parts, *expected.shape), np.nan, np.float32)
    interpreted(kernel, [*buffers, made], [number.evaluate(values) for number in numbers])
    assert np.abs(made.sum(0) - expected.numpy()).max() <= 1e-5 * expected.abs().max()


def dense(*extents: Expr | int) -> StridedView:
    """A row-major operand."""
    shape = tuple(map(as_expr, extents))
    return StridedView(0, shape, contiguous_strides(shape))


def test_a_bias_of_relative_positions_beside_a_mask_of_shifted_windows() -> None:
    """As Swin has them: all images and windows have a table, the windows of each image a mask."""
    form = Form(batch=8, heads=3, groups=3, queries=16, keys=16, width=32)
    torch.manual_seed(3)
    table = torch.randn(49, 3).to(form.dtype)
    places, is_seen = torch.randint(49, (16 * 16,)), torch.rand(4, 16, 16) < 0.7

    def layer(*operands: Tensor) -> Tensor:
        query, key, value, table, places, is_seen = operands
        bias = table[places].view(16, 16, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        hidden = torch.where(is_seen, 0.0, -100.0).to(bias.dtype)[None, :, None]
        mask = bias + hidden.expand(2, -1, -1, -1, -1).reshape(-1, 1, 16, 16)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.transpose(1, 2).flatten(2)

    backward = check(layer, [*form.operands(), table, places, is_seen], form)
    assert constant(templates(backward.program)[-1], "PARTS") == 1


def traced_backward(form: Form, shape: tuple[int, ...]) -> OptimizeResult:
    """The program of the backward pass for a mask of this shape."""
    bias = bias_of(form, shape).requires_grad_()
    return optimized(traced_with_gradients(form, [*form.operands(), bias])[1], WITH_FEW)


def test_masks_that_are_one_for_all_keys_are_the_frameworks() -> None:
    backward = traced_backward(FEW, (2, 1, 70, 1))
    assert not templates(backward.program)
    reason = "a mask that is one for all keys has gradients"
    report = dict(backward.stages)["report"]
    assert f"attention: 1 of gradients by the framework: {reason}" in report
