"""Folds batch norms into the weights and biases of the convolutions before them.

A norm with fixed statistics scales and shifts each channel. So does a convolution whose weight and
bias were scaled. They are computed in f64 and rounded once, from the parameters before a cast to a
narrower type.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from kernelfarm.client.freezing.values import FrozenValues, sole_user, value_of

_CONVOLUTION = torch.ops.aten.convolution.default
_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default
_CAST = torch.ops.aten._to_copy.default
_BIAS, _TRANSPOSED = 2, 6


def fold_norms(values: FrozenValues) -> int:
    """Folds the norms of a graph; returns how many."""
    found = [node for node in values.graph.nodes if node.target is _NORM]
    return sum(_fold(values, node) for node in found)


def _fold(values: FrozenValues, norm: fx.Node) -> bool:
    convolution, *statistics = norm.args[:5]
    result = sole_user(norm)
    if not isinstance(convolution, fx.Node) or result is None:
        return False
    if convolution.target is not _CONVOLUTION or sole_user(convolution) is not norm:
        return False
    weight, bias = convolution.args[1:3]
    if result.target is not operator.getitem or convolution.args[_TRANSPOSED]:
        return False
    parameters = [p for p in (weight, bias, *statistics) if p is not None]
    if not all(p in values for p in parameters) or not isinstance(weight, fx.Node):
        return False
    if value_of(convolution).dtype is not value_of(result).dtype:
        return False
    gamma, beta, mean, variance = statistics
    epsilon = norm.args[6]
    dtype, device = value_of(weight).dtype, value_of(weight).device
    channels = value_of(mean).shape
    with values.graph.inserting_before(convolution):
        scale = values.call(
            norm_scale, (gamma, variance, epsilon), values.empty(channels, torch.float64, device)
        )
        scaled = values.call(
            scaled_weight,
            (_before_cast(values, weight), scale, dtype),
            values.empty(value_of(weight).shape, dtype, device),
        )
        shifted = values.call(
            shifted_bias, (bias, mean, beta, scale, dtype), values.empty(channels, dtype, device)
        )
    arguments = (convolution.args[0], scaled, shifted, *convolution.args[_BIAS + 1 :])
    convolution.args = arguments
    result.replace_all_uses_with(convolution)
    values.graph.erase_node(result)
    values.graph.erase_node(norm)
    return True


def norm_scale(gamma: torch.Tensor | None, variance: torch.Tensor, epsilon: float) -> torch.Tensor:
    """What a norm multiplies each channel by, in f64.

    Shapes: all (channels,).
    """
    scale = (variance.double() + epsilon).rsqrt()
    return scale if gamma is None else scale * gamma.double()


def scaled_weight(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A convolution's weight with a norm's scale.

    Shapes: weight: (channels, ...); scale: (channels,).
    """
    per_channel = scale.view(-1, *[1] * (weight.dim() - 1))
    return (weight.double() * per_channel).to(dtype).contiguous()


def shifted_bias(
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    beta: torch.Tensor | None,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """A convolution's bias with a norm's scale and shift.

    Shapes: all (channels,).
    """
    shifted = ((0 if bias is None else bias.double()) - mean.double()) * scale
    return (shifted if beta is None else shifted + beta.double()).to(dtype)


def _before_cast(values: FrozenValues, weight: fx.Node) -> fx.Node:
    """The weight before it was rounded to a narrower type, as under autocast."""
    source = weight.args[0] if weight.target is _CAST and weight.args else None
    if not isinstance(source, fx.Node) or source not in values:
        return weight
    before, after = value_of(source).dtype, value_of(weight).dtype
    is_rounded = before.is_floating_point and before.itemsize > after.itemsize
    return source if is_rounded else weight
