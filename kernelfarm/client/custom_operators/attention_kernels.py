"""Attention for training, by the device's fused kernels.

Torch's forward kernels save different values. Here each saves the same two: the result, and the
log-sum-exp of each row's scores, `(batch, heads, length)`. Every backward kernel starts from these,
independent of the forward kernel. Torch chooses the kernel; if it has none for the operands,
attention is computed by matrix products (`attention_products`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.nn.attention import SDPBackend

from kernelfarm.client.custom_operators import attention_products
from kernelfarm.client.custom_operators.attention_products import (
    AttentionGradients,
    AttentionOperands,
)
from kernelfarm.client.pytorch.private import _fused_sdp_choice

_aten = torch.ops.aten

_FLASH_WIDTH = 8
"""CUDA's flash kernels require head widths that are multiples of this."""

_MASK_ALIGNMENT = 8
"""Memory-efficient kernels require mask rows that begin at multiples of this many elements."""

_ROWS_AT_ONCE = 1 if torch.version.hip else 32
"""Memory-efficient kernels require log-sum-exps for a multiple of this many rows."""


class SavedForBackward(NamedTuple):
    """The values of the forward pass that the backward pass needs."""

    output: Tensor
    logsumexp: Tensor


def forward(operands: AttentionOperands, *, mask_needs_gradient: bool) -> SavedForBackward:
    """The result and its rows' log-sum-exps, in the layouts that the kernel returns."""
    match _kernel_for(operands, mask_needs_gradient=mask_needs_gradient):
        case "cpu":
            return _on_cpu(operands)
        case "flash":
            return _flash(operands)
        case "efficient":
            return _efficient(operands)
        case "cudnn":
            return _cudnn(operands)
        case _:
            return SavedForBackward(*attention_products.forward(operands))


def backward(
    grad: Tensor, operands: AttentionOperands, saved: SavedForBackward, *, mask_needs_gradient: bool
) -> AttentionGradients:
    """The gradients of the operands, from the gradient of the result."""
    if grad.stride(-1) != 1:
        grad = grad.contiguous()  # the gradient of a sum is expanded; kernels expect dense rows
    match _kernel_for(operands, mask_needs_gradient=mask_needs_gradient):
        case "cpu":
            return _on_cpu_backward(grad, operands, saved)
        case "flash":
            return _flash_backward(grad, operands, saved)
        case "efficient":
            return _efficient_backward(grad, operands, saved, mask_needs_gradient)
        case "cudnn":
            return _cudnn_backward(grad, operands, saved)
        case _:
            return attention_products.backward(
                grad, operands, saved.logsumexp, mask_needs_gradient=mask_needs_gradient
            )


def lacks_groups(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> bool:
    """True if torch has no fused kernel on a GPU for heads in groups, with these operands.

    On a CPU its kernel takes groups, and its products do not compute in another type.
    """
    if query.device.type != "cuda":
        return False
    chosen = _fused_sdp_choice(query, key, value, *rest, **options)
    return bool(chosen == SDPBackend.MATH.value)


def _kernel_for(operands: AttentionOperands, *, mask_needs_gradient: bool) -> str:
    """The kernel that torch chooses for operands that need gradients; empty if it has none."""
    query, key, value, mask, is_causal, scale, enable_gqa = operands
    device = query.device.type
    if device not in _KERNELS:
        return ""
    with torch.enable_grad():
        query = query.detach().requires_grad_()  # some kernels lack a backward for some widths
        if mask is not None and mask_needs_gradient:
            mask = mask.detach().requires_grad_()
        choice = _fused_sdp_choice(
            query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    kernel = _KERNELS[device].get(choice, "")
    return "" if mask_needs_gradient and kernel != "efficient" else kernel


_KERNELS = {
    "cpu": {SDPBackend.FLASH_ATTENTION.value: "cpu"},
    "cuda": {
        SDPBackend.FLASH_ATTENTION.value: "flash",
        SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
        SDPBackend.CUDNN_ATTENTION.value: "cudnn",
    },
}


def _on_cpu(operands: AttentionOperands) -> SavedForBackward:
    return SavedForBackward(
        *_aten._scaled_dot_product_flash_attention_for_cpu.default(
            *operands[:3], 0.0, operands.is_causal, **_cpu_options(operands)
        )
    )


def _on_cpu_backward(
    grad: Tensor, operands: AttentionOperands, saved: SavedForBackward
) -> AttentionGradients:
    return AttentionGradients(
        *_aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            *(grad, *operands[:3], *saved, 0.0, operands.is_causal), **_cpu_options(operands)
        )
    )


def _cpu_options(operands: AttentionOperands) -> dict[str, Any]:
    """Only the options that differ from the defaults: each keyword costs microseconds."""
    options: dict[str, Any] = {}
    if operands.mask is not None:
        options["attn_mask"] = operands.mask
    if operands.scale is not None:
        options["scale"] = operands.scale
    return options


def _flash(operands: AttentionOperands) -> SavedForBackward:
    query, key, value = map(_padded, operands[:3])
    output, logsumexp, *_ = _aten._scaled_dot_product_flash_attention.default(
        query, key, value, 0.0, operands.is_causal, scale=_scale(operands)
    )
    return SavedForBackward(output[..., : operands.value.shape[-1]], logsumexp)


def _flash_backward(
    grad: Tensor, operands: AttentionOperands, saved: SavedForBackward
) -> AttentionGradients:
    query, key, value, output = map(_padded, (*operands[:3], saved.output))
    found = _aten._scaled_dot_product_flash_attention_backward.default(
        *(_padded(grad), query, key, value, output, saved.logsumexp),
        *(None, None, query.shape[2], key.shape[2], 0.0, operands.is_causal),
        *_no_dropout(query),
        scale=_scale(operands),
    )
    widths = [tensor.shape[-1] for tensor in operands[:3]]
    return AttentionGradients(*(g[..., :width] for g, width in zip(found, widths, strict=True)))


def _efficient(operands: AttentionOperands) -> SavedForBackward:
    query, key, value, _, is_causal, scale, _ = operands
    output, logsumexp, *_ = _aten._scaled_dot_product_efficient_attention.default(
        query, key, value, _bias(operands), True, 0.0, is_causal, scale=scale
    )
    return SavedForBackward(output, logsumexp[..., : query.shape[2]])


def _efficient_backward(
    grad: Tensor, operands: AttentionOperands, saved: SavedForBackward, mask_needs_gradient: bool
) -> AttentionGradients:
    query, key, value, mask, is_causal, scale, _ = operands
    missing = -query.shape[2] % _ROWS_AT_ONCE
    logsumexp = F.pad(saved.logsumexp, (0, missing), value=math.inf)
    *found, grad_bias = _aten._scaled_dot_product_efficient_attention_backward.default(
        *(grad, query, key, value, _bias(operands), saved.output, logsumexp),
        *(*_no_dropout(query), 0.0, (True, True, True, mask_needs_gradient), is_causal),
        scale=scale,
    )
    gradients = AttentionGradients(*found)
    if mask is None or not mask_needs_gradient:
        return gradients
    return gradients._replace(mask=grad_bias.sum_to_size(mask.shape).to(mask.dtype))


def _cudnn(operands: AttentionOperands) -> SavedForBackward:
    query, key, value, mask, is_causal, scale, _ = operands
    output, logsumexp, *_ = _aten._scaled_dot_product_cudnn_attention.default(
        query, key, value, mask, True, 0.0, is_causal, scale=scale
    )
    logsumexp = logsumexp.view(query.shape[:3])
    if mask is not None:  # like other kernels: infinity for rows without an unmasked key
        logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, math.inf)
    return SavedForBackward(output, logsumexp)


def _cudnn_backward(
    grad: Tensor, operands: AttentionOperands, saved: SavedForBackward
) -> AttentionGradients:
    query, key, value, mask, is_causal, scale, _ = operands
    # Torch caches cuDNN's plans by the operands' layouts, and assumes that the result has the
    # query's layout.
    output = _ordered_as(query, saved.output)
    return AttentionGradients(
        *_aten._scaled_dot_product_cudnn_attention_backward.default(
            *(grad, query, key, value, output, saved.logsumexp.unsqueeze(-1)),
            *(*_no_dropout(query), mask, None, None),
            *(query.shape[2], key.shape[2], 0.0, is_causal),
            scale=scale,
        )
    )


def _ordered_as(model: Tensor, tensor: Tensor) -> Tensor:
    """A dense tensor with the same content, whose axes have the memory order of the model's."""
    strides = [0] * tensor.dim()
    step = 1
    for axis in sorted(range(tensor.dim()), key=model.stride):
        strides[axis] = step
        step *= tensor.shape[axis]
    if tensor.stride() == tuple(strides):
        return tensor
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _scale(operands: AttentionOperands) -> float:
    given = operands.scale
    return 1 / math.sqrt(operands.query.shape[-1]) if given is None else given


def _padded(tensor: Tensor) -> Tensor:
    missing = -tensor.shape[-1] % _FLASH_WIDTH
    return F.pad(tensor, (0, missing)) if missing else tensor


def _bias(operands: AttentionOperands) -> Tensor | None:
    """The mask for memory-efficient kernels: one addend for each score, in aligned rows."""
    query, key, _, bias, *_ = operands
    if bias is None:
        return None
    length = bias.shape[-1]
    missing = -length % _MASK_ALIGNMENT
    if missing:
        bias = F.pad(bias, (0, missing))[..., :length]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _no_dropout(query: Tensor) -> tuple[Tensor, Tensor]:
    """Placeholders for the random state that kernels save for dropout."""
    state = query.new_empty((), dtype=torch.int64)
    return state, state
