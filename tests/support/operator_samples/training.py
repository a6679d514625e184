"""Sample calls of operators of training graphs: losses, statistics, gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, INF, INTS, NAN, between, normal, positive
from tests.support.single_operator import Call


def training_calls() -> Iterator[Call]:
    """At least one call for each operator of training graphs in the table."""
    for group in (
        _activation_gradients,
        _softmax_gradients,
        _batch_norm,
        _norm_gradients,
        _losses,
        _class_losses,
        _bit_losses,
        _pool_gradients,
        _large_windows,
        _unfolding_gradients,
        _part_gradients,
    ):
        yield from group()


BOUNDS = torch.tensor([NAN, -4.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 4.0, 30.0, -30.0])


def _activation_gradients() -> Iterator[Call]:
    of_operand: dict[str, tuple[object, ...]] = {
        "threshold": (0.5,),
        "gelu": (),
        "silu": (),
        "mish": (),
        "hardswish": (),
        "hardsigmoid": (),
        "hardtanh": (-1.0, 1.0),
        "leaky_relu": (0.2, False),
        "softplus": (2.0, 20.0),
        "hardshrink": (0.5,),
        "softshrink": (0.5,),
    }
    for name, rest in of_operand.items():
        op = f"aten.{name}_backward.default"
        for dtype in FLOATS:
            x = (normal(4, 9) * 3).to(dtype)
            yield Call(op, [normal(4, 9, seed=1).to(dtype), x, *rest])
        yield Call(op, [normal(12), BOUNDS, *rest])
    x, grad = normal(4, 9) * 3, normal(4, 9, seed=1)
    yield Call("aten.gelu_backward.default", [grad, x], {"approximate": "tanh"})
    yield Call("aten.hardtanh_backward.default", [grad, x, -0.5, 2])
    yield Call("aten.threshold_backward.default", [grad, x, 0])
    for name in ("sigmoid", "tanh"):
        for dtype in FLOATS:
            y = between(4, 9, dtype=dtype)
            yield Call(f"aten.{name}_backward.default", [grad.to(dtype), y])
    for is_result in (False, True):
        yield Call("aten.elu_backward.default", [grad, 1.5, 2.0, 0.5, is_result, x])
        yield Call("aten.elu_backward.default", [grad.half(), 1, 1, 1, is_result, x.half()])
    for eps in (None, 0.2):
        inside = torch.tensor([0.1, 0.2, 0.5, 0.9, 1.1, -0.1])
        yield Call("aten.logit_backward.default", [normal(6), inside, eps])
    buffer = torch.exp(-x.abs())
    yield Call("aten.log_sigmoid_backward.default", [grad, x, buffer])
    yield Call("aten.glu_backward.default", [normal(4, 3), normal(4, 6), -1])
    yield Call("aten.glu_backward.default", [normal(2, 6).half(), normal(4, 6).half(), 0])
    for slope in (normal(9).expand(4, 9), normal(4, 1).expand(4, 9), normal(1).expand(4, 9)):
        yield Call("aten._prelu_kernel_backward.default", [grad, x, slope])
        yield Call("aten._prelu_kernel_backward.default", [grad[:, :1].expand(4, 9), x, slope])
    yield Call("aten._prelu_kernel_backward.default", [grad, x, normal(1, 9)])
    yield Call("aten.native_dropout_backward.default", [grad, x > 0, 1.25])
    yield Call("aten.native_dropout_backward.default", [grad.int(), x > 0, 1.25])
    yield Call("aten.native_dropout_backward.default", [grad.bfloat16(), x > 0, 1.25])
    noise = positive(4, 9)
    for training in (True, False):
        args = [grad, x, noise, 0.125, 0.5, training, False]
        yield Call("aten.rrelu_with_noise_backward.default", args)


def _softmax_gradients() -> Iterator[Call]:
    for name in ("_softmax", "_log_softmax"):
        for dtype in FLOATS:
            y = torch.softmax(normal(3, 7), 1).to(dtype)
            y = y if name == "_softmax" else y.log()
            yield Call(f"aten.{name}_backward_data.default", [normal(3, 7).to(dtype), y, 1, dtype])
        yield Call(f"aten.{name}_backward_data.default", [normal(), normal(), 0, torch.float32])


def _batch_norm() -> Iterator[Call]:
    running = [normal(6, seed=2), positive(6)]
    scales = [normal(6), normal(6, seed=1)]
    functional = "aten._native_batch_norm_legit_functional.default"
    for dtype in FLOATS[:2]:
        args = [normal(4, 6, 3, 5), *scales, *running]
        yield Call(functional, [*(t.to(dtype) for t in args), True, 0.1, 1e-5])
    yield Call(functional, [normal(5, 6), None, None, *running, True, 0.3, 1e-3])
    yield Call(functional, [normal(5, 6), *scales, *running, False, 0.3, 1e-3])
    library = [normal(5, 6, 2), *scales, *running, 0.3, 1e-3]
    yield Call("aten._batch_norm_with_update_functional.default", library)
    yield Call("aten._batch_norm_no_update.default", library)
    no_stats = "aten._native_batch_norm_legit.no_stats"
    yield Call(no_stats, [normal(2, 6, 7), *scales, True, 0.1, 1e-5])
    yield Call(no_stats, [normal(2, 6, 7), None, None, True, 0.1, 1e-5])


def _norm_gradients() -> Iterator[Call]:
    masks = ([True, True, True], [True, False, False])
    x, grad, weight = normal(4, 6, 3, 5), normal(4, 6, 3, 5, seed=3), normal(6)
    axes = (0, 2, 3)
    mean, rstd = x.mean(axes), (x.var(axes, correction=0) + 1e-5).rsqrt()
    running = [normal(6, seed=2), positive(6)]
    batch = "aten.native_batch_norm_backward.default"
    for mask in masks[:1]:
        yield Call(batch, [grad, x, weight, *running, mean, rstd, True, 1e-5, mask])
        yield Call(batch, [grad, x, None, *running, mean, rstd, True, 1e-5, mask])
        yield Call(batch, [grad, x, weight, *running, mean, rstd, False, 1e-5, mask])
    for update in (True, False):
        args = [grad, x, weight, *running, mean, rstd, update, 1e-5, masks[0]]
        yield Call("aten.batch_norm_backward.default", [*args, torch.empty(0, dtype=torch.uint8)])
    for dtype in FLOATS:
        x = normal(4, 3, 8).to(dtype)
        wide = x if dtype is torch.float64 else x.float()
        mean, rstd = wide.mean(-1, True), (wide.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        parts = [normal(4, 3, 8, seed=1).to(dtype), x, [8], mean.to(dtype), rstd.to(dtype)]
        weights = [normal(8).to(dtype), normal(8).to(dtype)]
        yield Call("aten.native_layer_norm_backward.default", [*parts, *weights, masks[0]])
    image, grad = normal(2, 6, 4, 5), normal(2, 6, 4, 5, seed=1)
    grouped = image.reshape(2, 3, 40)
    mean, rstd = grouped.mean(-1), (grouped.var(-1, correction=0) + 1e-5).rsqrt()
    sizes = [2, 6, 20, 3]
    group = "aten.native_group_norm_backward.default"
    yield Call(group, [grad, image, mean, rstd, weight, *sizes, masks[0]])


def _losses() -> Iterator[Call]:
    for dtype in FLOATS:
        pair = [normal(3, 4).to(dtype), normal(3, 4, seed=1).to(dtype)]
        for reduction in (0, 1, 2):
            grad = normal(3, 4, seed=2).to(dtype) if reduction == 0 else normal().to(dtype)
            yield Call("aten.mse_loss_backward.default", [grad, *pair, reduction])
            yield Call("aten.smooth_l1_loss_backward.default", [grad, *pair, reduction, 0.5])
            yield Call("aten.huber_loss_backward.default", [grad, *pair, reduction, 0.5])
            yield Call("aten.soft_margin_loss_backward.default", [grad, *pair, reduction])
            yield Call("aten.huber_loss.default", [*pair, reduction, 0.5])
            yield Call("aten.soft_margin_loss.default", [*pair, reduction])
    at_bound = [torch.tensor([0.5, -0.5, 0.0, 1.0]), torch.zeros(4)]
    yield Call("aten.huber_loss_backward.default", [normal(4), *at_bound, 0, 0.5])
    yield Call("aten.smooth_l1_loss_backward.default", [normal(4), *at_bound, 0, 0.5])


def _class_losses() -> Iterator[Call]:
    target = torch.tensor([2, 0, -100, 4, 1])
    scores, weight = normal(5, 6), positive(6)
    image, pixels = normal(2, 6, 3, 4), normal(2, 3, 4, dtype=INTS[0]) % 6
    for reduction in (0, 1, 2):
        for weights in (None, weight):
            rest = [weights, reduction, -100]
            yield Call("aten.nll_loss_forward.default", [scores, target, *rest])
            yield Call("aten.nll_loss2d_forward.default", [image, pixels, weights, reduction, 3])
            grad = normal(5) if reduction == 0 else normal()
            args = [grad, scores, target, *rest, torch.tensor(2.5)]
            yield Call("aten.nll_loss_backward.default", args)
            grad = normal(2, 3, 4) if reduction == 0 else normal()
            args = [grad, image, pixels, weights, reduction, 3, torch.tensor(2.5)]
            yield Call("aten.nll_loss2d_backward.default", args)
    yield Call("aten.nll_loss_forward.default", [normal(6), torch.tensor(3), None, 1, -100])
    ignored = torch.full((5,), -100)
    yield Call("aten.nll_loss_forward.default", [scores, ignored, None, 1, -100])
    yield Call("aten.nll_loss_forward.default", [scores.bfloat16(), target, None, 1, -100])


def _bit_losses() -> Iterator[Call]:
    x, t = torch.sigmoid(normal(3, 4)), torch.sigmoid(normal(3, 4, seed=1))
    ends = [torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])]
    for reduction in (0, 1, 2):
        for weight in (None, positive(4)):
            yield Call("aten.binary_cross_entropy.default", [x, t, weight, reduction])
            grad = normal(3, 4) if reduction == 0 else normal()
            args = [grad, x, t, weight, reduction]
            yield Call("aten.binary_cross_entropy_backward.default", args)
            for positives in (None, positive(4, seed=1)):
                args = [normal(3, 4) * 9, t, weight, positives, reduction]
                yield Call("aten.binary_cross_entropy_with_logits.default", args)
    yield Call("aten.binary_cross_entropy.default", [*ends, None, 0])
    yield Call("aten.binary_cross_entropy_backward.default", [normal(4), *ends, None, 0])
    extreme = [torch.tensor([INF, -INF, 0.0]), torch.tensor([1.0, 0.0, 0.5])]
    yield Call("aten.binary_cross_entropy_with_logits.default", [*extreme, None, None, 0])


def _pool_gradients() -> Iterator[Call]:
    image, volume = normal(2, 3, 7, 9), normal(2, 4, 5, 6)
    for x, axes in ((image, 2), (volume, 3), (image.double(), 2), (image.bfloat16(), 2)):
        for kernel, stride, padding, dilation, ceil in (
            (3, 2, 1, 1, False),
            (2, 2, 0, 1, True),
            (2, 1, 0, 2, False),
            (2, 3, 1, 1, True),
        ):
            sizes = [[size] * axes for size in (kernel, stride, padding, dilation)]
            pool = getattr(torch.nn.functional, f"max_pool{axes}d")
            made, indices = pool(x, *sizes, ceil_mode=ceil, return_indices=True)
            grad = normal(*made.shape, seed=1).to(x.dtype)
            op = f"aten.max_pool{axes}d_with_indices_backward.default"
            yield Call(op, [grad, x, *sizes, ceil, indices])
            if dilation > 1:
                continue
            for includes, divisor in ((True, None), (False, None), (True, 5)):
                pool = getattr(torch.nn.functional, f"avg_pool{axes}d")
                made = pool(x, *sizes[:3], ceil, includes, divisor)
                args = [normal(*made.shape).to(x.dtype), x, *sizes[:3], ceil, includes, divisor]
                yield Call(f"aten.avg_pool{axes}d_backward.default", args)
        for size in (1, 3, 4):
            pool = getattr(torch.nn.functional, f"adaptive_max_pool{axes}d")
            made, indices = pool(x, size, return_indices=True)
            grad = normal(*made.shape, seed=1).to(x.dtype)
            yield Call(f"aten.adaptive_max_pool{axes}d_backward.default", [grad, x, indices])
            yield Call(f"aten._adaptive_avg_pool{axes}d_backward.default", [grad, x])


def _large_windows() -> Iterator[Call]:
    """Windows that are too large to be unrolled."""
    x = normal(2, 3, 14, 13)
    x[0, 0, 2:12, 1:11] = -INF
    x[0, 1, 4, 4] = x[0, 1, 9, 8] = NAN
    for tensor in (x, x.double(), x.half(), normal(2, 14, 13, dtype=INTS[0])):
        sizes = [[9, 9], [3, 2], [4, 3]]
        yield Call("aten.max_pool2d_with_indices.default", [tensor, *sizes])
        yield Call("aten.max_pool2d_with_indices.default", [tensor, *sizes, [1, 1], True])
    yield Call("aten.max_pool2d_with_indices.default", [x, [5, 13], [1, 1], [2, 0], [2, 1]])
    volume = normal(1, 6, 6, 7)
    yield Call("aten.max_pool3d_with_indices.default", [volume, [5, 5, 5], [1, 1, 1], [2, 2, 2]])
    for tensor in (x.nan_to_num(neginf=0.0), normal(3, 11, 12).bfloat16()):
        for includes in (True, False):
            for ceil in (False, True):
                args = [tensor, [9, 8], [2, 3], [4, 2], ceil, includes]
                yield Call("aten.avg_pool2d.default", args)


def _unfolding_gradients() -> Iterator[Call]:
    for dtype in (torch.float32, torch.float16):
        columns = normal(2, 12, 20).to(dtype)
        yield Call("aten.col2im.default", [columns, [5, 6], [2, 2], [1, 1], [0, 0], [1, 1]])
        yield Call("aten.col2im.default", [columns[0], [3, 2], [2, 2], [1, 1], [1, 2], [1, 1]])
    columns = normal(2, 12, 12)
    yield Call("aten.col2im.default", [columns, [5, 6], [2, 2], [2, 1], [1, 1], [2, 2]])
    backward = "aten.unfold_backward.default"
    yield Call(backward, [normal(2, 4, 5, 3), [2, 9, 5], 1, 3, 2])
    yield Call(backward, [normal(7, 3), [9], 0, 3, 1])
    yield Call(backward, [normal(3, 2), [9], 0, 2, 3])
    yield Call(backward, [normal(1, 4, 3), [5, 9], 1, 3, 2])


def _part_gradients() -> Iterator[Call]:
    shapes = ((2, 3, 5), (2, 3, 5, 4), (2, 3, 4, 5, 4))
    amounts = ([1, 2], [4, 0], [0, 0]), ([1, 2, 3, 0], [3, 3, 0, 1]), ([1, 2, 0, 1, 1, 1],)
    for axes, (shape, paddings) in enumerate(zip(shapes, amounts, strict=True), start=1):
        for mode in ("reflection_pad", "replication_pad"):
            for padding in paddings:
                for dtype in (torch.float32, torch.bfloat16):
                    x = normal(*shape).to(dtype)
                    made = getattr(torch.ops.aten, f"{mode}{axes}d")(x, padding)
                    args = [normal(*made.shape, seed=1).to(dtype), x, padding]
                    yield Call(f"aten.{mode}{axes}d_backward.default", args)
    for x, padding in ((normal(2, 3, 5), [7, 9]), (normal(2, 3, 1), [2, 1])):
        grad = normal(2, 3, x.shape[-1] + sum(padding))
        yield Call("aten.replication_pad1d_backward.default", [grad, x, padding])
    select, slice_ = "aten.select_backward.default", "aten.slice_backward.default"
    for index in (0, 2, -1):
        yield Call(select, [normal(4, 3), [4, 5, 3], 1, index])
    yield Call(select, [normal(4, dtype=INTS[0]), [4, 5], -1, 3])
    for start, end, step, length in ((1, 4, 1, 3), (-3, 5, 2, 2), (0, 99, 3, 2), (4, 2, 1, 0)):
        yield Call(slice_, [normal(2, length, 3), [2, 5, 3], 1, start, end, step])
    diagonal = "aten.diagonal_backward.default"
    yield Call(diagonal, [normal(2, 3), [2, 3, 4], 1, 1, 2])
    yield Call(diagonal, [normal(2, 2), [3, 2, 4], -1, 0, 2])
