"""Batch normalization in training, and the gradients of normalizations."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
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
    op: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalization by the batch's own statistics, and the running statistics moved towards them.

    The saved variance is 1/sqrt(variance + eps); the running one is divided by count - 1.
    """
    if not training:
        shared = (input, weight, bias, running_mean, running_var, momentum, eps)
        kept = _as_traced(op, running_mean, 3), _as_traced(op, running_var, 4)
        return *batch_norm_no_training(op, *shared), *kept
    result, mean, rstd, variance = _by_batch(op, input, weight, bias, eps)
    count = numel_of((input.shape[0], *input.shape[2:]))
    total = op.apply("mul", variance, count.constant if count.is_constant else count)
    fewer = op.extents.simplified(count - 1)
    unbiased = op.apply("div", total, fewer.constant if fewer.is_constant else fewer)
    saved = statistics_dtype(op, input)
    return (
        result,
        op.convert(mean, saved),
        op.convert(rstd, saved),
        _moved(op, running_mean, mean, momentum, 3),
        _moved(op, running_var, unbiased, momentum, 4),
    )


@decomposes("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The same in training, with what a library reserves for the gradient: nothing here."""
    if op.stated[3:] and op.stated[3].shape != (ZERO,):
        raise NotDecomposedError("a library that keeps more than the batch's statistics")
    shared = (input, weight, bias, running_mean, running_var)
    stated, op.stated = op.stated, (*op.stated[:3], *op.stated[4:])
    result, mean, rstd, new_mean, new_var = batch_norm_functional(op, *shared, True, momentum, eps)
    op.stated = stated
    return result, mean, rstd, op.full(0, DType.U8, (ZERO,)), new_mean, new_var


@decomposes("aten._batch_norm_no_update.default")
def batch_norm_no_update(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
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
    return *batch_norm_no_training(op, *shared), op.full(0, DType.U8, (ZERO,))


@decomposes("aten.batch_norm_backward.default")
def batch_norm_backward_of_library(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
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
        raise NotDecomposedError("a library that keeps more than the batch's statistics")
    running, saved = (running_mean, running_var), (save_mean, save_var)
    return batch_norm_backward(
        op, grad_out, input, weight, *running, *saved, update, eps, output_mask
    )


@decomposes("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the batch's own statistics, which nothing else keeps."""
    if not training:
        raise NotDecomposedError("batch normalization in inference without statistics")
    result, mean, rstd, _ = _by_batch(op, input, weight, bias, eps)
    saved = statistics_dtype(op, input)
    return result, op.convert(mean, saved), op.convert(rstd, saved)


@decomposes("aten.native_batch_norm_backward.default")
def batch_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
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
    wants = _wanted(output_mask)
    grad, x = op.widened(grad_out), op.widened(input)
    mean = _channels(op, x, save_mean if train else running_mean)
    if train:
        rstd = _channels(op, x, save_invstd)
    else:
        rstd = op.prim("rsqrt", op.apply("add", _channels(op, x, running_var), eps))
    scale = rstd if weight is None else op.apply("mul", rstd, _channels(op, x, weight))
    axes = tuple(axis for axis in range(x.rank) if axis != 1)
    normal = op.apply("mul", op.apply("sub", x, mean), rstd)
    total = op.reduce("sum", grad, axes, keepdim=True)
    dot = op.reduce("sum", op.apply("mul", grad, normal), axes, keepdim=True)
    left = grad
    if train:
        left = op.apply("sub", left, _over(op, total, x, axes))
        left = op.apply("sub", left, op.apply("mul", normal, _over(op, dot, x, axes)))
    kept = input.dtype if weight is None else weight.dtype
    of_input = op.convert(op.apply("mul", left, scale), input.dtype)
    return (
        of_input if wants[0] else None,
        op.convert(op.reshape(dot, (x.shape[1],)), kept) if wants[1] else None,
        op.convert(op.reshape(total, (x.shape[1],)), kept) if wants[2] else None,
    )


@decomposes("aten.native_layer_norm_backward.default")
def layer_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
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
    wants = _wanted(output_mask)
    first = input.rank - len(normalized_shape)
    if first < 0 or not op.extents.is_same_shape(input.shape[first:], normalized_shape):
        raise InvalidGraphError(
            f"normalized shape {text_of(normalized_shape)} of {text_of(input.shape)}"
        )
    inner, outer = tuple(range(first, input.rank)), tuple(range(first))
    grad, x = op.widened(grad_out), op.widened(input)
    inverse = op.widened(rstd)
    normal = op.apply("mul", op.apply("sub", x, op.widened(mean)), inverse)
    product = op.apply("mul", grad, normal)
    scaled = grad if weight is None else op.apply("mul", grad, op.widened(weight))
    of_input = _normalized_gradient(op, scaled, normal, inverse, inner)
    of_weight, of_bias = (op.reduce("sum", part, outer) for part in (product, grad))
    kept = input.dtype if weight is None else weight.dtype
    return (
        op.convert(of_input, input.dtype) if wants[0] else None,
        op.convert(of_weight, kept) if wants[1] else None,
        op.convert(of_bias, kept) if wants[2] else None,
    )


@decomposes("aten._fused_rms_norm_backward.default")
def rms_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
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
    grad, inverse = op.widened(grad_out), op.widened(rstd)
    normal = op.apply("mul", op.widened(input), inverse)
    of_weight = op.reduce("sum", op.apply("mul", grad, normal), outer)
    scaled = grad if weight is None else op.apply("mul", grad, op.widened(weight))
    dot = op.reduce("sum", op.apply("mul", scaled, normal), inner, keepdim=True)
    share = op.apply("mul", normal, _over(op, dot, normal, inner))
    of_input = op.apply("mul", op.apply("sub", scaled, share), inverse)
    kept = input.dtype if weight is None else weight.dtype
    return (
        op.convert(of_input, input.dtype) if output_mask[0] else None,
        op.convert(of_weight, kept) if output_mask[1] and weight is not None else None,
    )


@decomposes("aten.native_group_norm_backward.default")
def group_norm_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
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
    wants = _wanted(output_mask)
    if group < 1 or input.rank < 2 or not op.extents.is_same(C // group * group, C):
        raise InvalidGraphError(f"{group} groups of {C} channels; expected a divisor")
    groups = (N, as_extent(group), C // group, HxW)
    if not op.extents.is_same(numel_of(groups), numel_of(input.shape)):
        raise InvalidGraphError(f"{text_of(groups)} for shape {text_of(input.shape)}")
    grad, x = (op.reshape(op.widened(t), groups) for t in (grad_out, input))
    places = (N, as_extent(group), ONE, ONE)
    inverse = op.reshape(op.widened(rstd), places)
    normal = op.apply("mul", op.apply("sub", x, op.reshape(op.widened(mean), places)), inverse)
    scaled = grad
    if weight is not None:
        channels = op.reshape(op.widened(weight), (as_extent(group), C // group, ONE))
        scaled = op.apply("mul", grad, channels)
    of_input = _normalized_gradient(op, scaled, normal, inverse, (2, 3))
    product = op.apply("mul", grad, normal)
    kept = input.dtype if weight is None else weight.dtype
    of_weight, of_bias = (op.reduce("sum", part, (0, 3)) for part in (product, grad))
    return (
        op.convert(op.reshape(of_input, input.shape), input.dtype) if wants[0] else None,
        op.convert(op.reshape(of_weight, (C,)), kept) if wants[1] else None,
        op.convert(op.reshape(of_bias, (C,)), kept) if wants[2] else None,
    )


def _normalized_gradient(
    op: Lowering, grad: Tensor, normal: Tensor, rstd: Tensor, axes: tuple[int, ...]
) -> Tensor:
    """The gradient of x, given that of (x - mean) * rstd, where both statistics are of x."""
    total = op.reduce("sum", grad, axes, keepdim=True)
    dot = op.reduce("sum", op.apply("mul", grad, normal), axes, keepdim=True)
    left = op.apply("sub", grad, _over(op, total, normal, axes))
    left = op.apply("sub", left, op.apply("mul", normal, _over(op, dot, normal, axes)))
    return op.apply("mul", left, rstd)


def _by_batch(
    op: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(result, mean, 1/sqrt(variance + eps), variance); statistics are vectors, computed wide."""
    if x.rank < 2 or not x.dtype.is_float:
        raise InvalidGraphError(f"{x.dtype!r} of shape {text_of(x.shape)}; expected channels")
    axes = tuple(axis for axis in range(x.rank) if axis != 1)
    centered, mean, variance = moments_of(op, op.widened(x), axes)
    rstd = op.prim("rsqrt", op.apply("add", variance, eps))
    result = op.apply("mul", centered, rstd)
    if weight is not None:
        result = op.apply("mul", result, _channels(op, x, weight))
    if bias is not None:
        result = op.apply("add", result, _channels(op, x, bias))
    vectors = (op.reshape(value, (x.shape[1],)) for value in (mean, rstd, variance))
    return op.convert(result, x.dtype), *vectors  # type: ignore[return-value]  # three by construction


def _moved(op: Lowering, running: Tensor, found: Tensor, momentum: float, result: int) -> Tensor:
    kept = op.apply("mul", op.widened(running), 1.0 - momentum)
    added = op.apply("mul", op.convert(found, kept.dtype), momentum)
    return _as_traced(op, op.convert(op.apply("add", added, kept), running.dtype), result)


def _as_traced(op: Lowering, running: Tensor, result: int) -> Tensor:
    # The framework's trace may state the computing type for what its kernel keeps narrow.
    stated = op.stated[result].dtype if len(op.stated) > result else running.dtype
    return op.convert(running, stated) if stated is running.dtype.compute_dtype else running


def _channels(op: Lowering, x: Tensor, parameter: Tensor | None) -> Tensor:
    if parameter is None:
        raise InvalidGraphError("statistics are missing; expected one element for each channel")
    return op.convert(channel_operand(op, x, parameter), x.dtype.compute_dtype)


def _over(op: Lowering, total: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    count = numel_of(tuple(x.shape[axis] for axis in axes))
    return op.apply("div", total, count.constant if count.is_constant else count)


def _wanted(output_mask: tuple[bool, ...]) -> tuple[bool, ...]:
    if len(output_mask) != 3:
        raise InvalidGraphError(f"a mask of {len(output_mask)} results; expected 3")
    return output_mask
