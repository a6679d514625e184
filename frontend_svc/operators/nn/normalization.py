"""Layer, group, batch and root-mean-square normalization, computed in f32 for narrow floats."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.reductions.statistics import mean_of, moments_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

_EPSILON = {DType.F64: 2.220446049250313e-16, DType.F32: 1.1920928955078125e-07}
"""PyTorch's default eps: the distance from 1 to the next number in the computing type."""


@decomposes("aten.native_layer_norm.default")
def native_layer_norm(
    builder: PrimsBuilder,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + eps) over the last axes; and the mean and 1/sqrt(...)."""
    axes = _trailing_axes(builder, input, normalized_shape, (weight, bias))
    centered, mean, variance = moments_of(builder, builder.widened(input), axes)
    rstd = builder.prim("rsqrt", builder.apply("add", variance, eps))
    result = _scaled(builder, builder.apply("mul", centered, rstd), weight, bias)
    dtype = statistics_dtype(builder, input)
    return (
        builder.convert(result, input.dtype),
        builder.convert(mean, dtype),
        builder.convert(rstd, dtype),
    )


@decomposes("aten._fused_rms_norm.default")
def fused_rms_norm(
    builder: PrimsBuilder,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x * x) + eps) over the last axes; and 1/sqrt(...)."""
    result, rstd = _rms_norm(builder, input, normalized_shape, weight, eps)
    return result, builder.convert(rstd, statistics_dtype(builder, input))


@decomposes("aten.rms_norm.default")
def rms_norm(
    builder: PrimsBuilder,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) over the last axes."""
    return _rms_norm(builder, input, normalized_shape, weight, eps)[0]


@decomposes("aten.native_group_norm.default")
def native_group_norm(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Expr,  # noqa: N803  # the operator's own names
    C: Expr,  # noqa: N803
    HxW: Expr,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization over groups of channels and all pixels; and the mean and 1/sqrt(...)."""
    if group < 1 or input.rank < 2 or not builder.extents.is_same(C // group * group, C):
        raise InvalidGraphError(f"{group} groups of {C} channels; expected a divisor of {C}")
    grouped = _regrouped(builder, input, (N, as_extent(group), C // group, HxW))
    centered, mean, variance = moments_of(builder, builder.widened(grouped), (2, 3))
    rstd = builder.prim("rsqrt", builder.apply("add", variance, eps))
    result = builder.reshape(builder.apply("mul", centered, rstd), input.shape)
    result = _scaled(
        builder, result, _per_channel(builder, input, weight), _per_channel(builder, input, bias)
    )
    dtype = statistics_dtype(builder, input)
    shape = (N, as_extent(group))
    return (
        builder.convert(result, input.dtype),
        builder.convert(builder.reshape(mean, shape), dtype),
        builder.convert(builder.reshape(rstd, shape), dtype),
    )


@decomposes("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the running statistics; PyTorch saves them on a GPU, nothing on a CPU."""
    x = builder.widened(input)
    mean = builder.widened(channel_operand(builder, input, running_mean))
    variance = builder.widened(channel_operand(builder, input, running_var))
    rstd = builder.prim("rsqrt", builder.apply("add", variance, eps))
    result = builder.apply("mul", builder.apply("sub", x, mean), builder.convert(rstd, x.dtype))
    result = _scaled(
        builder, result, _per_channel(builder, input, weight), _per_channel(builder, input, bias)
    )
    dtype = statistics_dtype(builder, input)
    result = builder.convert(result, input.dtype)
    if len(builder.stated) > 1 and builder.stated[1].shape == running_mean.shape:
        saved_mean = builder.reshape(mean, running_mean.shape)
        saved_rstd = builder.reshape(rstd, running_var.shape)
        return result, builder.convert(saved_mean, dtype), builder.convert(saved_rstd, dtype)
    empty = builder.full(0.0, dtype, (ZERO,))
    return result, empty, empty


@decomposes("aten.native_batch_norm.default", note="extern in training")
def native_batch_norm(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the running statistics, for inference."""
    if training or running_mean is None or running_var is None:
        raise NotDecomposedError("batch normalization in training updates its running statistics")
    return batch_norm_no_training(
        builder, input, weight, bias, running_mean, running_var, momentum, eps
    )


def as_extent(value: int) -> Expr:
    """An integer as an extent."""
    return ONE * value


def _rms_norm(
    builder: PrimsBuilder,
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_float:
        raise InvalidGraphError(f"a normalization of type {x.dtype!r}; expected a float")
    axes = _trailing_axes(builder, x, normalized_shape, (weight,))
    wide = builder.widened(x)
    square = mean_of(builder, builder.prim("mul", wide, wide), axes)
    added = _EPSILON[wide.dtype] if eps is None else eps
    rstd = builder.prim("rsqrt", builder.apply("add", square, added))
    result = _scaled(builder, builder.apply("mul", wide, rstd), weight, None)
    return builder.convert(result, x.dtype), rstd


def _trailing_axes(
    builder: PrimsBuilder, x: Tensor, normalized_shape: Shape, parameters: tuple[Tensor | None, ...]
) -> tuple[int, ...]:
    first = x.rank - len(normalized_shape)
    if first < 0 or not normalized_shape or not x.dtype.is_float:
        raise InvalidGraphError(
            f"normalized shape {text_of(normalized_shape)} of a {x.dtype!r} tensor"
            f" {text_of(x.shape)}; expected the last extents of a float tensor"
        )
    if not builder.extents.is_same_shape(x.shape[first:], normalized_shape):
        raise InvalidGraphError(
            f"normalized shape {text_of(normalized_shape)}; expected {text_of(x.shape[first:])}"
        )
    for parameter in parameters:
        if parameter is not None and not builder.extents.is_same_shape(
            parameter.shape, normalized_shape
        ):
            raise InvalidGraphError(
                f"a weight or bias of shape {text_of(parameter.shape)};"
                f" expected {text_of(normalized_shape)}"
            )
    return tuple(range(first, x.rank))


def _scaled(builder: PrimsBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = builder.apply("mul", x, builder.convert(weight, x.dtype))
    return x if bias is None else builder.apply("add", x, builder.convert(bias, x.dtype))


def _regrouped(builder: PrimsBuilder, x: Tensor, shape: Shape) -> Tensor:
    if not builder.extents.is_same_shape(x.shape[:2], (shape[0], shape[1] * shape[2])):
        raise InvalidGraphError(f"{text_of(x.shape)}; expected {shape[0]} x {shape[1] * shape[2]}")
    return builder.reshape(x, builder.extents.resolved(shape, numel_of(x.shape)))


def _per_channel(builder: PrimsBuilder, x: Tensor, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else channel_operand(builder, x, parameter)


def channel_operand(builder: PrimsBuilder, x: Tensor, parameter: Tensor) -> Tensor:
    """A vector with one element per channel (axis 1), shaped to broadcast over the other axes."""
    channels = x.shape[1] if x.rank >= 2 else ZERO
    if parameter.rank != 1 or not builder.extents.is_same(parameter.shape[0], channels):
        raise InvalidGraphError(
            f"{text_of(parameter.shape)} for {channels} channels; expected one element per channel"
        )
    return builder.reshape(parameter, (channels, *([ONE] * (x.rank - 2))))


def statistics_dtype(builder: PrimsBuilder, x: Tensor) -> DType:
    """The type of saved statistics: the operand's type or its computing type, as stated."""
    stated = builder.stated[1].dtype if len(builder.stated) > 1 else x.dtype
    return stated if stated in (x.dtype, x.dtype.compute_dtype) else x.dtype
