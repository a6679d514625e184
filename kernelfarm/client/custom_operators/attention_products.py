"""Attention for training by matrix products and a softmax, for operands without a fused kernel.

It computes in f64 for f64, else in f32, like torch's own unfused attention. A row without an
unmasked key gives zeros; its log-sum-exp is infinity, like that of fused kernels, so that its
weights are 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class AttentionOperands(NamedTuple):
    """The operands of attention: tensors with four axes, a mask that is added to the scores."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float | None
    enable_gqa: bool


class AttentionGradients(NamedTuple):
    """The gradients of query, key, value and mask; the mask's is None unless requested."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None


def saved_dtype(dtype: torch.dtype) -> torch.dtype:
    """The element type of log-sum-exps and of the computation."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def forward(operands: AttentionOperands) -> tuple[Tensor, Tensor]:
    """The result, and the log-sum-exp of each row's scores.

    Shapes: result (batch, heads, length, value width); log-sum-exp (batch, heads, length).
    """
    scores = _scores(operands)
    logsumexp = scores.logsumexp(-1)
    logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, math.inf)
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    value = _for_each_head(operands.value, operands)
    return (weights @ value).to(operands.query.dtype), logsumexp


def backward(
    grad: Tensor, operands: AttentionOperands, logsumexp: Tensor, *, mask_needs_gradient: bool
) -> AttentionGradients:
    """The gradients of the operands, from the gradient of the result."""
    query, key, value = operands[:3]
    wide = grad.to(logsumexp.dtype)
    weights = (_scores(operands) - logsumexp.unsqueeze(-1)).exp()
    grad_value = weights.mT @ wide
    grad_weights = wide @ _for_each_head(value, operands).mT
    mean = (grad_weights * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - mean)
    scale = _scale(operands)
    grad_query = grad_scores @ _for_each_head(key, operands) * scale
    grad_key = grad_scores.mT @ query.to(wide.dtype) * scale
    mask = operands.mask if mask_needs_gradient else None
    return AttentionGradients(
        grad_query.to(query.dtype),
        _summed_over_groups(grad_key, key),
        _summed_over_groups(grad_value, value),
        None if mask is None else grad_scores.sum_to_size(mask.shape).to(mask.dtype),
    )


def _scores(operands: AttentionOperands) -> Tensor:
    query, mask = operands.query, operands.mask
    wide = query.to(saved_dtype(query.dtype)) * _scale(operands)
    scores = wide @ _for_each_head(operands.key, operands).mT
    if operands.is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return scores.masked_fill(~allowed, -math.inf)
    return scores if mask is None else scores + mask


def _scale(operands: AttentionOperands) -> float:
    given = operands.scale
    return 1 / math.sqrt(operands.query.shape[-1]) if given is None else given


def _for_each_head(tensor: Tensor, operands: AttentionOperands) -> Tensor:
    """Keys or values in the computation's type, repeated for query heads that share one."""
    wide = tensor.to(saved_dtype(tensor.dtype))
    if not operands.enable_gqa:
        return wide
    return wide.repeat_interleave(operands.query.shape[1] // tensor.shape[1], 1)


def _summed_over_groups(grad: Tensor, tensor: Tensor) -> Tensor:
    if grad.shape[1] != tensor.shape[1]:
        grad = grad.reshape(grad.shape[0], tensor.shape[1], -1, *grad.shape[2:]).sum(2)
    return grad.to(tensor.dtype)
