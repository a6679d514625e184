"""kernelfarm's attention operators: one for inference, and two for training.

Each traces as one node, with shapes, types and layouts that are the same on every device. Results
and gradients have the layout of most fused kernels, `(batch, length, heads, width)` in memory; if a
kernel returns another layout, the operator copies.

`attention_saving` returns the result and the log-sum-exp of each row; autograd calls
`attention_backward` with both. `attention_backward` has no derivative, because AOT Autograd does
not differentiate twice either.

Shapes:
    query: (batch, heads, length, width); key, value: (batch, heads, key length, width).
    output: (batch, heads, length, value width); logsumexp: (batch, heads, length).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.custom_operators import attention_kernels
from kernelfarm.client.custom_operators.attention_kernels import SavedForBackward
from kernelfarm.client.custom_operators.attention_products import AttentionOperands, saved_dtype
from kernelfarm.client.pytorch.fake_kernels import register_fake

_INFERENCE = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0,"
    " bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"
)
_OPERANDS = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale,"
    " bool enable_gqa, bool mask_needs_gradient"
)
_SAVING = f"({_OPERANDS}) -> (Tensor output, Tensor logsumexp)"
_BACKWARD = (
    f"(Tensor grad, Tensor output, Tensor logsumexp, {_OPERANDS})"
    " -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_mask)"
)

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Runs `ATTENTION` with the device's kernel; the result may have any layout.

    Without a fused kernel for heads in groups, torch computes in f32 by matrix products on a GPU.
    Then heads are repeated, because fused kernels take that.
    """
    if options.get("enable_gqa") and attention_kernels.lacks_groups(
        query, key, value, *rest, **options
    ):
        options = {**options, "enable_gqa": False}
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    return F.scaled_dot_product_attention(query, key, value, *rest, **options)


def _attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    result = attend(query, key, value, *rest, **options)
    return _laid_out(result, _by_rows(query, value.shape[-1]))


def _empty_result(query: Tensor, _key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    return _by_rows(query, value.shape[-1])


def save(*operands: Any) -> tuple[Tensor, Tensor]:
    """Runs `ATTENTION_SAVING` with the device's kernel; results may have any layout."""
    return attention_kernels.forward(
        AttentionOperands(*operands[:-1]), mask_needs_gradient=operands[-1]
    )


def _save(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    found = save(query, key, value, *rest)
    planned = _empty_saved(query, key, value)
    return _laid_out(found[0], planned[0]), _laid_out(found[1], planned[1])


def _empty_saved(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    logsumexp = query.new_empty(query.shape[:3], dtype=saved_dtype(query.dtype))
    return _by_rows(query, value.shape[-1]), logsumexp


def go_back(grad: Tensor, output: Tensor, logsumexp: Tensor, *operands: Any) -> Four:
    """Runs `ATTENTION_BACKWARD` with the device's kernel; results may have any layout."""
    *given, mask_needs_gradient = operands
    found = attention_kernels.backward(
        grad,
        AttentionOperands(*given),
        SavedForBackward(output, logsumexp),
        mask_needs_gradient=mask_needs_gradient,
    )
    grad_mask = grad.new_empty(0) if found.mask is None else found.mask
    return found.query, found.key, found.value, grad_mask


def _go_back(grad: Tensor, output: Tensor, logsumexp: Tensor, *operands: Any) -> Four:
    found = go_back(grad, output, logsumexp, *operands)
    planned = _empty_gradients(grad, output, logsumexp, *operands)
    one, two, three, four = map(_laid_out, found, planned)
    return one, two, three, four


def _empty_gradients(grad: Tensor, _output: Tensor, _logsumexp: Tensor, *operands: Any) -> Four:
    query, key, value, mask, *_, mask_needs_gradient = operands
    return (
        _by_rows(query, query.shape[-1]),
        _by_rows(key, key.shape[-1]),
        _by_rows(value, value.shape[-1]),
        mask.new_empty(mask.shape) if mask_needs_gradient else grad.new_empty(0),
    )


def _by_rows(like: Tensor, width: Any) -> Tensor:
    batch, heads, length, _ = like.shape
    return like.new_empty((batch, length, heads, width)).transpose(1, 2)


def _laid_out(found: Tensor, planned: Tensor) -> Tensor:
    return found if found.stride() == planned.stride() else planned.copy_(found)


def _note(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, *options = inputs
    ctx.options = options
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, query, key, value, mask)


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *gradients, grad_mask = ATTENTION_BACKWARD(grad, *ctx.saved_tensors, *ctx.options)
    mask_needs_gradient = ctx.options[-1]
    return (*gradients, grad_mask if mask_needs_gradient else None, None, None, None, None)


def _refuse(_ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "the gradients of attention have no derivative; expected one backward()"
    )


for _name, _schema, _run, _fake in (
    ("attention", _INFERENCE, _attend, _empty_result),
    ("attention_saving", _SAVING, _save, _empty_saved),
    ("attention_backward", _BACKWARD, _go_back, _empty_gradients),
):
    torch.library.define(f"kernelfarm::{_name}", _schema)
    torch.library.impl(f"kernelfarm::{_name}", "CompositeExplicitAutograd", _run)
    register_fake(_name, _fake)
torch.library.register_autograd("kernelfarm::attention_saving", _differentiate, setup_context=_note)
torch.library.register_autograd("kernelfarm::attention_backward", _refuse)

ATTENTION = torch.ops.kernelfarm.attention.default
"""The operator for inference; its arguments are those of torch's function."""

ATTENTION_SAVING = torch.ops.kernelfarm.attention_saving.default
"""The operator for training: the result, and the log-sum-exps for `ATTENTION_BACKWARD`."""

ATTENTION_BACKWARD = torch.ops.kernelfarm.attention_backward.default
"""Gradients of query, key, value and mask; the mask's is empty unless it is requested."""
