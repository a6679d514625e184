"""Batch normalization in training, and the gradients of normalizations."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.nn.normalization import (
    as_extent,
    batch_norm_no_training,
    channel_operand,
    statistics_dtype,
)
from frontend_svc.operators.reductions.statistics import moments_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@decomposes("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalization by the statistics of the batch; and the updated running statistics.

    The saved variance is 1/sqrt(variance + eps); the running variance is divided by count - 1.
    """
    if not training:
        shared = (input, weight, bias, running_mean, running_var, momentum, eps)
        kept = _as_traced(builder, running_mean, 3), _as_traced(builder, running_var, 4)
        return *batch_norm_no_training(builder, *shared), *kept
    result, mean, rstd, variance = _by_batch(builder, input, weight, bias, eps)
    count = numel_of((input.shape[0], *input.shape[2:]))
    total = builder.apply("mul", variance, number_of(count))
    fewer = builder.extents.simplified(count - 1)
    unbiased = builder.apply("div", total, number_of(fewer))
    saved = statistics_dtype(builder, input)
    return (
        result,
        builder.convert(mean, saved),
        builder.convert(rstd, saved),
        _moved(builder, running_mean, mean, momentum, 3),
        _moved(builder, running_var, unbiased, momentum, 4),
    )


@decomposes("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """As `batch_norm_functional` in training, with an empty reserve for the gradient."""
    if builder.stated[3:] and builder.stated[3].shape != (ZERO,):
        raise NotDecomposedError("a library that saves more than the statistics of the batch")
    shared = (input, weight, bias, running_mean, running_var)
    stated, builder.stated = builder.stated, (*builder.stated[:3], *builder.stated[4:])
    result, mean, rstd, new_mean, new_var = batch_norm_functional(
        builder, *shared, True, momentum, eps
    )
    builder.stated = stated
    return result, mean, rstd, builder.full(0, DType.U8, (ZERO,)), new_mean, new_var


@decomposes("aten._batch_norm_no_update.default")
def batch_norm_no_update(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalization by the running statistics."""
    if running_mean is None or running_var is None:
        raise NotDecomposedError("batch normalization without running statistics")
    shared = (input, weight, bias, running_mean, running_var, momentum, eps)
    return *batch_norm_no_training(builder, *shared), builder.full(0, DType.U8, (ZERO,))


@decomposes("aten.batch_norm_backward.default")
def batch_norm_backward_of_library(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: tuple[bool, ...],
    reserve: Tensor,
) -> _Gradients:
    """Gradients of the operand, the weight and the bias; `save_var` is 1/sqrt(variance + eps)."""
    if reserve.shape != (ZERO,):
        raise NotDecomposedError("a library that saves more than the statistics of the batch")
    running, saved = (running_mean, running_var), (save_mean, save_var)
    return batch_norm_backward(
        builder, grad_out, input, weight, *running, *saved, update, eps, output_mask
    )


@decomposes("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the statistics of the batch, without running statistics."""
    if not training:
        raise NotDecomposedError("batch normalization in inference without statistics")
    result, mean, rstd, _ = _by_batch(builder, input, weight, bias, eps)
    saved = statistics_dtype(builder, input)
    return result, builder.convert(mean, saved), builder.convert(rstd, saved)


@decomposes("aten.native_batch_norm_backward.default")
def batch_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: tuple[bool, ...],
) -> _Gradients:
    """Gradients of the operand, the weight and the bias."""
    wants = _needs_gradient(output_mask)
    grad, x = builder.widened(grad_out), builder.widened(input)
    mean = _channels(builder, x, save_mean if train else running_mean)
    if train:
        rstd = _channels(builder, x, save_invstd)
    else:
        rstd = builder.prim("rsqrt", builder.apply("add", _channels(builder, x, running_var), eps))
    scale = rstd if weight is None else builder.apply("mul", rstd, _channels(builder, x, weight))
    axes = tuple(axis for axis in range(x.rank) if axis != 1)
    normal = builder.apply("mul", builder.apply("sub", x, mean), rstd)
    total = builder.reduce("sum", grad, axes, keepdim=True)
    dot = builder.reduce("sum", builder.apply("mul", grad, normal), axes, keepdim=True)
    left = grad
    if train:
        left = builder.apply("sub", left, _over(builder, total, x, axes))
        left = builder.apply(
            "sub", left, builder.apply("mul", normal, _over(builder, dot, x, axes))
        )
    kept = input.dtype if weight is None else weight.dtype
    of_input = builder.convert(builder.apply("mul", left, scale), input.dtype)
    return (
        of_input if wants[0] else None,
        builder.convert(builder.reshape(dot, (x.shape[1],)), kept) if wants[1] else None,
        builder.convert(builder.reshape(total, (x.shape[1],)), kept) if wants[2] else None,
    )


@decomposes("aten.native_layer_norm_backward.default")
def layer_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: tuple[bool, ...],
) -> _Gradients:
    """Gradients of the operand, the weight and the bias."""
    wants = _needs_gradient(output_mask)
    first = input.rank - len(normalized_shape)
    if first < 0 or not builder.extents.is_same_shape(input.shape[first:], normalized_shape):
        raise InvalidGraphError(
            f"normalized shape {text_of(normalized_shape)} of {text_of(input.shape)}"
        )
    inner, outer = tuple(range(first, input.rank)), tuple(range(first))
    grad, x = builder.widened(grad_out), builder.widened(input)
    inverse = builder.widened(rstd)
    normal = builder.apply("mul", builder.apply("sub", x, builder.widened(mean)), inverse)
    product = builder.apply("mul", grad, normal)
    scaled = grad if weight is None else builder.apply("mul", grad, builder.widened(weight))
    of_input = _normalized_gradient(builder, scaled, normal, inverse, inner)
    of_weight, of_bias = (builder.reduce("sum", part, outer) for part in (product, grad))
    kept = input.dtype if weight is None else weight.dtype
    return (
        builder.convert(of_input, input.dtype) if wants[0] else None,
        builder.convert(of_weight, kept) if wants[1] else None,
        builder.convert(of_bias, kept) if wants[2] else None,
    )


@decomposes("aten._fused_rms_norm_backward.default")
def rms_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: tuple[int, ...],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients of the operand and the weight."""
    first = input.rank - len(normalized_shape)
    if first < 0 or len(output_mask) != 2:
        raise InvalidGraphError(f"normalized shape {normalized_shape} of {text_of(input.shape)}")
    inner, outer = tuple(range(first, input.rank)), tuple(range(first))
    grad, inverse = builder.widened(grad_out), builder.widened(rstd)
    normal = builder.apply("mul", builder.widened(input), inverse)
    of_weight = builder.reduce("sum", builder.apply("mul", grad, normal), outer)
    scaled = grad if weight is None else builder.apply("mul", grad, builder.widened(weight))
    dot = builder.reduce("sum", builder.apply("mul", scaled, normal), inner, keepdim=True)
    share = builder.apply("mul", normal, _over(builder, dot, normal, inner))
    of_input = builder.apply("mul", builder.apply("sub", scaled, share), inverse)
    kept = input.dtype if weight is None else weight.dtype
    return (
        builder.convert(of_input, input.dtype) if output_mask[0] else None,
        builder.convert(of_weight, kept) if output_mask[1] and weight is not None else None,
    )


@decomposes("aten.native_group_norm_backward.default")
def group_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: Expr,  # noqa: N803  # the operator's own names
    C: Expr,  # noqa: N803
    HxW: Expr,  # noqa: N803
    group: int,
    output_mask: tuple[bool, ...],
) -> _Gradients:
    """Gradients of the operand, the weight and the bias."""
    wants = _needs_gradient(output_mask)
    if group < 1 or input.rank < 2 or not builder.extents.is_same(C // group * group, C):
        raise InvalidGraphError(f"{group} groups of {C} channels; expected a divisor of {C}")
    groups = (N, as_extent(group), C // group, HxW)
    if not builder.extents.is_same(numel_of(groups), numel_of(input.shape)):
        raise InvalidGraphError(f"{text_of(groups)} for shape {text_of(input.shape)}")
    grad, x = (builder.reshape(builder.widened(t), groups) for t in (grad_out, input))
    group_shape = (N, as_extent(group), ONE, ONE)
    inverse = builder.reshape(builder.widened(rstd), group_shape)
    normal = builder.apply(
        "mul", builder.apply("sub", x, builder.reshape(builder.widened(mean), group_shape)), inverse
    )
    scaled = grad
    if weight is not None:
        channels = builder.reshape(builder.widened(weight), (as_extent(group), C // group, ONE))
        scaled = builder.apply("mul", grad, channels)
    of_input = _normalized_gradient(builder, scaled, normal, inverse, (2, 3))
    product = builder.apply("mul", grad, normal)
    kept = input.dtype if weight is None else weight.dtype
    of_weight, of_bias = (builder.reduce("sum", part, (0, 3)) for part in (product, grad))
    return (
        builder.convert(builder.reshape(of_input, input.shape), input.dtype) if wants[0] else None,
        builder.convert(builder.reshape(of_weight, (C,)), kept) if wants[1] else None,
        builder.convert(builder.reshape(of_bias, (C,)), kept) if wants[2] else None,
    )


def _normalized_gradient(
    builder: PrimsBuilder, grad: Tensor, normal: Tensor, rstd: Tensor, axes: tuple[int, ...]
) -> Tensor:
    """The gradient of x from that of (x - mean) * rstd, where mean and rstd depend on x."""
    total = builder.reduce("sum", grad, axes, keepdim=True)
    dot = builder.reduce("sum", builder.apply("mul", grad, normal), axes, keepdim=True)
    left = builder.apply("sub", grad, _over(builder, total, normal, axes))
    left = builder.apply(
        "sub", left, builder.apply("mul", normal, _over(builder, dot, normal, axes))
    )
    return builder.apply("mul", left, rstd)


def _by_batch(
    builder: PrimsBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(result, mean, 1/sqrt(variance + eps), variance); the statistics are wide vectors."""
    if x.rank < 2 or not x.dtype.is_float:
        raise InvalidGraphError(f"{x.dtype!r} of shape {text_of(x.shape)}; expected channels")
    axes = tuple(axis for axis in range(x.rank) if axis != 1)
    centered, mean, variance = moments_of(builder, builder.widened(x), axes)
    rstd = builder.prim("rsqrt", builder.apply("add", variance, eps))
    result = builder.apply("mul", centered, rstd)
    if weight is not None:
        result = builder.apply("mul", result, _channels(builder, x, weight))
    if bias is not None:
        result = builder.apply("add", result, _channels(builder, x, bias))
    result = builder.convert(result, x.dtype)
    mean, rstd, variance = (
        builder.reshape(value, (x.shape[1],)) for value in (mean, rstd, variance)
    )
    return result, mean, rstd, variance


def _moved(
    builder: PrimsBuilder, running: Tensor, found: Tensor, momentum: float, result: int
) -> Tensor:
    kept = builder.apply("mul", builder.widened(running), 1.0 - momentum)
    added = builder.apply("mul", builder.convert(found, kept.dtype), momentum)
    return _as_traced(
        builder, builder.convert(builder.apply("add", added, kept), running.dtype), result
    )


def _as_traced(builder: PrimsBuilder, running: Tensor, result: int) -> Tensor:
    # The trace may state the computing type although the framework's kernel uses a narrow type.
    stated = builder.stated[result].dtype if len(builder.stated) > result else running.dtype
    return builder.convert(running, stated) if stated is running.dtype.compute_dtype else running


def _channels(builder: PrimsBuilder, x: Tensor, parameter: Tensor | None) -> Tensor:
    if parameter is None:
        raise InvalidGraphError("no statistics; expected one element per channel")
    return builder.convert(channel_operand(builder, x, parameter), x.dtype.compute_dtype)


def _over(builder: PrimsBuilder, total: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    count = numel_of(tuple(x.shape[axis] for axis in axes))
    return builder.apply("div", total, number_of(count))


def _needs_gradient(output_mask: tuple[bool, ...]) -> tuple[bool, ...]:
    if len(output_mask) != 3:
        raise InvalidGraphError(f"a mask of {len(output_mask)} results; expected 3")
    return output_mask
