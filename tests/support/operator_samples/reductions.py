"""Sample calls of reductions, statistics, norms and losses."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import (
    FLOATS,
    INF,
    INTS,
    NAN,
    normal,
    positive,
)
from tests.support.single_operator import Call, each_call


def reduction_calls() -> Iterator[Call]:
    """Sums, extrema, statistics and norms."""
    for group in (
        _softmax,
        _reductions,
        _statistics,
        _normalization,
    ):
        yield from group()


def loss_calls() -> Iterator[Call]:
    """Losses of models."""
    pair = [normal(3, 4), normal(3, 4, seed=1)]
    for reduction in (0, 1, 2):
        yield Call("aten.mse_loss.default", [*pair, reduction])
        yield Call("aten.smooth_l1_loss.default", [*pair, reduction, 0.5])


def _softmax() -> Iterator[Call]:
    for name in ["_softmax", "_log_softmax"]:
        for dtype in FLOATS:
            yield Call(f"aten.{name}.default", [normal(3, 7, dtype=dtype), -1, False])
        yield Call(f"aten.{name}.default", [normal(3, 7, 2), 1, False])
        yield Call(f"aten.{name}.default", [normal(), 0, False])
    for name in ["softmax", "log_softmax"]:
        yield Call(f"aten.{name}.int", [normal(3, 7, dtype=torch.int32), 1, torch.float32])
    masked = normal(3, 4)
    masked[1] = -INF
    yield Call("aten._softmax.default", [masked, 1, False])
    yield Call("aten._safe_softmax.default", [masked, 1])
    for args in (
        [normal(3, 7), [1]],
        [normal(3, 7), [0, 1], True],
        [normal(3, 7, dtype=INTS[0]), [0]],
    ):
        yield Call("aten.logsumexp.default", args)
    yield Call("aten.logsumexp.default", [torch.tensor([[-INF, -INF], [INF, 1.0]]), [1]])


def _reductions() -> Iterator[Call]:
    x = normal(3, 4, 5)
    typed = [x, x.double(), x.half(), x.bfloat16(), normal(3, 4, 5, dtype=INTS[1]), x > 0]
    for tensor in typed:
        yield Call("aten.sum.default", [tensor])
        yield Call("aten.sum.dim_IntList", [tensor, [1]])
        yield Call("aten.sum.dim_IntList", [tensor, [0, -1], True])
        yield Call("aten.prod.default", [tensor[0]])
        yield Call("aten.prod.dim_int", [tensor, 1, True])
        for name in ("amax", "amin"):
            yield Call(f"aten.{name}.default", [tensor])
            yield Call(f"aten.{name}.default", [tensor, [0, 2], True])
        for name in ("max", "min"):
            yield Call(f"aten.{name}.default", [tensor])
        for name in ("any", "all"):
            yield Call(f"aten.{name}.default", [tensor])
            yield Call(f"aten.{name}.dim", [tensor, 1, True])
            yield Call(f"aten.{name}.dims", [tensor, [0, 1]])
    yield Call("aten.sum.dim_IntList", [x, []])
    yield Call("aten.sum.dim_IntList", [x, None], {"dtype": torch.float64})
    yield Call("aten.sum.default", [normal()])
    yield Call("aten.any.dims", [x, []])
    yield Call("aten.any.default", [normal(4, dtype=torch.uint8)])
    ties = torch.tensor([[1.0, 3.0, 3.0], [NAN, 2.0, NAN], [-1.0, -1.0, -1.0]])
    for tensor in (x[0], ties, ties.half(), normal(4, 6, dtype=INTS[0])):
        for name in ("argmax", "argmin"):
            yield from each_call(f"aten.{name}.default", [tensor], [tensor, 1], [tensor, 0, True])
        for name in ("max", "min"):
            yield from each_call(f"aten.{name}.dim", [tensor, 1], [tensor, -1, True])
    yield Call("aten.argmax.default", [normal()])
    yield Call("aten.aminmax.default", [x])
    yield Call("aten.aminmax.default", [x], {"dim": 1, "keepdim": True})
    yield Call("aten.count_nonzero.default", [normal(4, 5, dtype=INTS[0])])
    yield Call("aten.count_nonzero.dim_IntList", [normal(4, 5, dtype=INTS[0]), [1]])
    for order in (2, 1, 0, 3, INF, -INF):
        yield Call("aten.linalg_vector_norm.default", [x, order, [1]])
    yield Call("aten.linalg_vector_norm.default", [x.half()])
    yield Call("aten.norm.ScalarOpt_dim", [x, None, [1], True])
    yield Call("aten.norm.Scalar", [x, 1])


def _statistics() -> Iterator[Call]:
    x = normal(3, 4, 5)
    for tensor in (x, x.double(), x.half(), x.bfloat16()):
        yield Call("aten.mean.default", [tensor])
        yield from each_call("aten.mean.dim", [tensor, [1]], [tensor, [0, -1], True])
        for name in ("var", "std"):
            yield Call(f"aten.{name}.dim", [tensor, [1]])
            yield Call(f"aten.{name}.dim", [tensor, [1], False, True])
            for correction in (0, 1, 2, 0.5, None):
                kwargs = {"correction": correction, "keepdim": True}
                yield Call(f"aten.{name}.correction", [tensor, [0, 2]], kwargs)
            yield Call(f"aten.{name}_mean.correction", [tensor, [-1]], {"correction": 0})
            yield Call(f"aten.{name}_mean.correction", [tensor])
    yield Call("aten.mean.dim", [normal(3, dtype=INTS[0]), [0]], {"dtype": torch.float32})
    yield Call("aten.var.correction", [normal(3, 1), [1]])
    yield Call("aten._adaptive_avg_pool2d.default", [normal(2, 3, 4, 5), [1, 1]])


def _normalization() -> Iterator[Call]:
    x, weight, bias = normal(4, 3, 8), normal(8), normal(8, seed=1)
    for dtype in FLOATS:
        args = [x.to(dtype), [8], weight.to(dtype), bias.to(dtype), 1e-5]
        yield Call("aten.native_layer_norm.default", args)
    yield Call("aten.native_layer_norm.default", [x, [3, 8], None, None, 1e-5])
    yield Call("aten.native_layer_norm.default", [x, [8], weight, None, 1e-12])
    yield Call("aten._fused_rms_norm.default", [x, [8], weight, 1e-6])
    yield Call("aten._fused_rms_norm.default", [x, [8], None, None])
    yield Call("aten.rms_norm.default", [x, [8], weight, 1e-6])
    yield Call("aten.rms_norm.default", [x, [8]])
    yield Call("aten.rms_norm.default", [x.half(), [8], weight.half(), 1e-6])
    image = normal(2, 6, 4, 5)
    channels = [normal(6), normal(6, seed=1)]
    yield Call("aten.native_group_norm.default", [image, *channels, 2, 6, 20, 3, 1e-5])
    yield Call("aten.native_group_norm.default", [image.half(), None, None, 2, 6, 20, 2, 1e-5])
    running = [normal(6, seed=2), positive(6)]
    batch = [image, *channels, *running]
    yield Call("aten._native_batch_norm_legit_no_training.default", [*batch, 0.1, 1e-5])
    yield Call(
        "aten._native_batch_norm_legit_no_training.default",
        [image, None, None, *running, 0.1, 1e-3],
    )
    yield Call("aten.native_batch_norm.default", [*batch, False, 0.1, 1e-5])
