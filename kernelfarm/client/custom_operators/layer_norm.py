"""Layer normalization for training in half types, with the same trace on every device.

For half types, torch's GPU kernel saves its statistics in f32 and its CPU kernel in the half type,
so torch's own traces differ. These operators save f32 everywhere. A captured graph names them as
torch's own operators, which the farm fuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelfarm.client.pytorch.fake_kernels import register_fake

Three = tuple[Tensor, Tensor, Tensor]
Optional = Tensor | None

_WIDE = torch.float32


def _save(x: Tensor, shape: Sequence[int], weight: Optional, bias: Optional, eps: float) -> Three:
    result, mean, rstd = torch.native_layer_norm(
        x.to(_WIDE), shape, _widened(weight), _widened(bias), eps
    )
    return result.to(x.dtype), mean, rstd


def _empty_saved(x: Tensor, shape: Sequence[int], *_: Any) -> Three:
    kept = (*x.shape[: x.dim() - len(shape)], *([1] * len(shape)))
    mean, rstd = (x.new_empty(kept, dtype=_WIDE) for _ in range(2))
    return x.new_empty(x.shape), mean, rstd


def _go_back(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Optional,
    bias: Optional,
    wanted: Sequence[bool],
) -> Three:
    found = torch.ops.aten.native_layer_norm_backward.default(
        *(grad.to(_WIDE), x.to(_WIDE), shape, mean, rstd),
        *(_widened(weight), _widened(bias), wanted),
    )
    one, two, three = (x.new_empty(0) if g is None else g.to(x.dtype) for g in found)
    return one, two, three


def _empty_gradients(
    _grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    _mean: Tensor,
    _rstd: Tensor,
    _weight: Optional,
    _bias: Optional,
    wanted: Sequence[bool],
) -> Three:
    shapes = (x.shape, shape, shape)
    one, two, three = (
        x.new_empty(size if is_wanted else (0,))
        for size, is_wanted in zip(shapes, wanted, strict=True)
    )
    return one, two, three


def _widened(tensor: Optional) -> Optional:
    return None if tensor is None else tensor.to(_WIDE)


def _note(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
    x, ctx.shape, weight, bias, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, *output[1:], weight, bias)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Optional, ...]:
    x, mean, rstd, weight, bias = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[index] for index in (0, 2, 3)]
    found = NORM_BACKWARD(grad, x, ctx.shape, mean, rstd, weight, bias, wanted)
    gradients = [g if is_wanted else None for g, is_wanted in zip(found, wanted, strict=True)]
    return gradients[0], None, gradients[1], gradients[2], None


def _refuse(_ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "the gradients of a layer norm have no derivative; expected one backward()"
    )


for _name, _schema, _run, _fake in (
    (
        "layer_norm_saving",
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)"
        " -> (Tensor, Tensor, Tensor)",
        _save,
        _empty_saved,
    ),
    (
        "layer_norm_backward",
        "(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,"
        " Tensor? weight, Tensor? bias, bool[] output_mask) -> (Tensor, Tensor, Tensor)",
        _go_back,
        _empty_gradients,
    ),
):
    torch.library.define(f"kernelfarm::{_name}", _schema)
    torch.library.impl(f"kernelfarm::{_name}", "CompositeExplicitAutograd", _run)
    register_fake(_name, _fake)
torch.library.register_autograd(
    "kernelfarm::layer_norm_saving", _differentiate, setup_context=_note
)
torch.library.register_autograd("kernelfarm::layer_norm_backward", _refuse)

NORM_SAVING = torch.ops.kernelfarm.layer_norm_saving.default
"""The result, the mean and 1/sqrt(variance + eps) of each row."""

NORM_BACKWARD = torch.ops.kernelfarm.layer_norm_backward.default
"""Gradients of operand, weight and bias; empty if not requested."""
