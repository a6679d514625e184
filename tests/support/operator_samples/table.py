"""Sample calls of every operator that decomposes, for the property tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch._inductor.inductor_prims  # registers prims.fma

from tests.support.operator_samples.aliases import kin_calls
from tests.support.operator_samples.images import image_calls
from tests.support.operator_samples.masks_and_segments import place_calls
from tests.support.operator_samples.scans_and_scatters import scan_and_scatter_calls
from tests.support.operator_samples.searches import search_calls
from tests.support.operator_samples.sorts import order_calls
from tests.support.operator_samples.special_functions import special_calls
from tests.support.operator_samples.tensors import (
    FLOATS,
    INF,
    INTS,
    NAN,
    between,
    index,
    normal,
    positive,
    special,
)
from tests.support.operator_samples.training import training_calls
from tests.support.operator_samples.windows import window_calls
from tests.support.single_operator import Call


def calls() -> Iterator[Call]:
    """At least one call for each operator in the table."""
    for group in (
        _pointwise,
        _arithmetic,
        _comparison,
        _bits,
        _division,
        _power,
        _activations,
        _softmax,
        _reductions,
        _statistics,
        _normalization,
        _creation,
        _views,
        _slicing,
        _joining,
        _indexing,
        _selection,
        _conversion,
        _losses,
        order_calls,
        scan_and_scatter_calls,
        place_calls,
        image_calls,
        kin_calls,
        search_calls,
        special_calls,
        training_calls,
        window_calls,
    ):
        yield from group()


def _each(op: str, *arguments: Sequence[Any], **kwargs: Any) -> Iterator[Call]:
    for args in arguments:
        yield Call(op, args, kwargs)


def _pointwise() -> Iterator[Call]:
    smooth = "cos erf erfc exp exp2 expm1 sigmoid sin sinh cosh tan tanh asinh atan reciprocal"
    for name in smooth.split():
        for dtype in FLOATS:
            yield Call(f"aten.{name}.default", [positive(3, 5, dtype=dtype)])
        yield Call(f"aten.{name}.default", [normal(4, dtype=torch.int64) + 1])
        yield Call(f"aten.{name}.default", [-positive(3, 5)])
    for name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt"]:
        for dtype in FLOATS:
            yield Call(f"aten.{name}.default", [positive(3, 5, dtype=dtype)])
        yield Call(f"aten.{name}.default", [special()])
    for name in ["acos", "asin", "atanh"]:
        yield from _each(f"aten.{name}.default", [between(3, 5)], [between(3, dtype=FLOATS[2])])
    yield Call("aten.acosh.default", [positive(3, 5) + 1])
    for name in [
        "floor",
        "ceil",
        "trunc",
        "fix",
        "round",
        "neg",
        "_neg_view",
        "abs",
        "sign",
        "sgn",
        "frac",
        "square",
    ]:
        yield from _each(
            f"aten.{name}.default", [special()[3:]], [normal(3, 5, dtype=torch.float16) * 4]
        )
    for name in ["floor", "ceil", "trunc", "round", "neg", "abs", "sign", "sgn"]:
        yield Call(f"aten.{name}.default", [normal(5, dtype=torch.int32) - 5])
    yield from _each("aten.sign.default", [normal(4, dtype=torch.bool)])
    for decimals in (2, -1, 0):
        yield Call("aten.round.decimals", [normal(7) * 30], {"decimals": decimals})
    for name in ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"]:
        yield from _each(
            f"aten.{name}.default",
            [special()],
            [special(torch.float16)],
            [normal(3, dtype=INTS[1])],
        )
    yield Call("aten.nan_to_num.default", [special()])
    yield Call("aten.nan_to_num.default", [special(torch.float16), 1.0, 2.0, -2.0])


def _arithmetic() -> Iterator[Call]:
    for name in ["add", "sub", "mul", "rsub"]:
        for pair in _pairs():
            if not (name in ("sub", "rsub") and all(t.dtype is torch.bool for t in pair)):
                yield Call(f"aten.{name}.Tensor", pair)
        yield from _each(
            f"aten.{name}.Scalar",
            [normal(3), 2],
            [normal(3, dtype=INTS[1]), 2.5],
            [normal(2), 7.25],
        )
        if name != "mul":
            yield Call(f"aten.{name}.Tensor", [normal(3, 4), normal(4)], {"alpha": 2.5})
            yield Call(
                f"aten.{name}.Tensor",
                [normal(3, dtype=INTS[0]), normal(3, dtype=INTS[0])],
                {"alpha": 3},
            )
            yield Call(f"aten.{name}.Scalar", [normal(3), 2, 3])
    yield Call("aten.add.Tensor", [normal(3, dtype=torch.float16), 0.1])
    yield Call("aten.mul.Tensor", [normal(3, dtype=torch.bfloat16), 0.1])
    for name in ["maximum", "minimum", "fmax", "fmin"]:
        yield Call(f"aten.{name}.default", [special(), special().flip(0)])
        yield Call(f"aten.{name}.default", [normal(3, dtype=INTS[2]), normal(3, 1, dtype=INTS[0])])
    for name in ["maximum", "minimum", "fmax", "fmin"]:
        yield Call(
            f"aten.{name}.default",
            [normal(9, dtype=torch.bool), normal(9, dtype=torch.bool, seed=3)],
        )
    yield Call("aten.atan2.default", [normal(4, 3), normal(3)])
    yield Call("aten.copysign.Tensor", [normal(4, 3), special()[3:6]])
    yield Call("aten.copysign.Scalar", [normal(4, 3, dtype=INTS[1]), -1.0])
    yield Call(
        "aten.xlogy.Tensor",
        [torch.tensor([0.0, 1.0, 2.0, 0.0]), torch.tensor([0.0, NAN, 3.0, NAN])],
    )
    yield Call("aten.xlogy.Scalar_Other", [normal(4), 3.0])
    yield Call("aten.logaddexp.default", [special()[1:], special().flip(0)[:-1]])
    yield Call("aten.heaviside.default", [special()[1:], normal(10)])
    for weight in (0.25, 0.75):
        yield Call("aten.lerp.Scalar", [normal(3, 4), normal(4), weight])
    yield Call("aten.lerp.Tensor", [normal(3, 4), normal(4), between(3, 1)])
    for name in ["addcmul", "addcdiv"]:
        args = [normal(3, 4), normal(4), positive(3, 1)]
        yield Call(f"aten.{name}.default", args)
        yield Call(f"aten.{name}.default", args, {"value": 0.5})
    yield Call("prims.fma.default", [normal(3), normal(3, seed=1), normal(3, seed=2)])


def _pairs() -> Iterator[list[torch.Tensor]]:
    yield [normal(3, 4), normal(4)]
    yield [normal(3, 1), normal(1, 4)]
    yield [normal(2, 3, dtype=torch.float16), normal(3, dtype=torch.float16, seed=1)]
    yield [normal(2, 3, dtype=torch.bfloat16), normal(3, dtype=torch.float32)]
    yield [normal(3, dtype=torch.int32), normal(3)]
    yield [normal(3, dtype=torch.float16), normal(dtype=torch.float64)]
    yield [normal(3, dtype=torch.uint8), normal(3, dtype=torch.int8)]
    yield [normal(7, dtype=torch.bool), normal(7, dtype=torch.bool, seed=2)]
    yield [normal(3, dtype=torch.int8), normal(3, dtype=torch.int16)]


def _comparison() -> Iterator[Call]:
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        for pair in _pairs():
            yield Call(f"aten.{name}.Tensor", pair)
        yield from _each(
            f"aten.{name}.Scalar",
            [special(), 0.5],
            [normal(4, dtype=INTS[0]), 4],
            [normal(4, dtype=INTS[1]), 4.5],
            [torch.tensor([0.1, 0.2], dtype=torch.float16), 0.1],
            [normal(4, dtype=torch.bool), True],
        )


def _bits() -> Iterator[Call]:
    for name in ["and", "or", "xor"]:
        for prefix in ("bitwise_{}", "__{}__"):
            op = "aten." + prefix.format(name)
            yield Call(f"{op}.Tensor", [normal(5, dtype=INTS[0]), normal(5, dtype=INTS[1], seed=1)])
            yield Call(
                f"{op}.Tensor", [normal(9, dtype=torch.bool), normal(9, dtype=torch.bool, seed=1)]
            )
            yield Call(f"{op}.Scalar", [normal(5, dtype=INTS[2]), 6])
        yield Call(f"aten.logical_{name}.default", [special(), normal(11, dtype=torch.bool)])
        yield Call(f"aten.logical_{name}.default", [normal(5, dtype=INTS[3]), normal(5) * 0])
    for side in ("left", "right"):
        pair = [normal(5, dtype=INTS[0]) - 5, normal(5, dtype=INTS[0], seed=1)]
        yield Call(f"aten.bitwise_{side}_shift.Tensor", pair)
        yield Call(f"aten.bitwise_{side}_shift.Tensor_Scalar", [pair[0], 2])
        yield Call(f"aten.__{side[0]}shift__.Tensor", pair)
        yield Call(f"aten.__{side[0]}shift__.Scalar", [pair[0], 2])
    yield from _each("aten.logical_not.default", [special()], [normal(5, dtype=torch.bool)])
    yield from _each(
        "aten.bitwise_not.default", [normal(5, dtype=INTS[4])], [normal(5, dtype=torch.bool)]
    )


def _division() -> Iterator[Call]:
    a = torch.tensor([7, -7, 7, -7, 0, 6, -6])
    b = torch.tensor([2, 2, -2, -2, 3, 3, 3])
    floats = [normal(50) * 10, normal(50, seed=1)]
    halves = [floats[0].half(), floats[1].half()]
    zeros = [special(), special().flip(0)]
    for pair in ([a, b], floats, halves, zeros):
        for op in (
            "div.Tensor",
            "true_divide.Tensor",
            "floor_divide.default",
            "remainder.Tensor",
            "fmod.Tensor",
        ):
            yield Call(f"aten.{op}", pair)
        for mode in (None, "floor", "trunc"):
            yield Call("aten.div.Tensor_mode", pair, {"rounding_mode": mode})
    for x in (a, floats[0], halves[0]):
        yield Call("aten.div.Scalar", [x, 3])
        yield Call("aten.floor_divide.Scalar", [x, 3])
        yield Call("aten.remainder.Scalar", [x, -3])
        yield Call("aten.fmod.Scalar", [x, -3])
        yield Call("aten.div.Scalar_mode", [x, 3], {"rounding_mode": "floor"})
    yield Call("aten.remainder.Scalar_Tensor", [7, b])


def _power() -> Iterator[Call]:
    for exponent in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 2.5, 7):
        yield Call("aten.pow.Tensor_Scalar", [positive(3, 4), exponent])
    for exponent in (2, 3):
        yield Call("aten.pow.Tensor_Scalar", [normal(3, 4, dtype=torch.float16), exponent])
    for exponent in (0, 1, 2, 3, 5, 8, 2.0):
        yield Call("aten.pow.Tensor_Scalar", [normal(6, dtype=INTS[0]) - 4, exponent])
    yield Call("aten.pow.Tensor_Scalar", [torch.tensor([0.0, -0.0, NAN, INF]), 0])
    for base in (1, 2, 3.5):
        yield Call("aten.pow.Scalar", [base, normal(3, 4)])
    yield Call("aten.pow.Tensor_Tensor", [positive(3, 4), normal(4)])
    yield Call(
        "aten.pow.Tensor_Tensor", [torch.tensor([0.0, 0.0, INF]), torch.tensor([0.0, 2.0, -1.0])]
    )


def _activations() -> Iterator[Call]:
    names = "relu relu6 silu gelu elu celu selu leaky_relu hardtanh hardsigmoid hardswish softplus"
    for name in [*names.split(), "mish", "hardshrink", "softshrink", "log_sigmoid_forward"]:
        for dtype in FLOATS:
            yield Call(f"aten.{name}.default", [(normal(4, 9) * 3).to(dtype)])
        # PyTorch's vectorized gelu of infinity is NaN, which ours need not be.
        ends = [30.0, -30.0] if name == "gelu" else [INF, 30.0, -30.0]
        yield Call(f"aten.{name}.default", [torch.tensor([NAN, 0.0, *ends])])
    x = normal(4, 9) * 3
    yield Call("aten.gelu.default", [x], {"approximate": "tanh"})
    yield Call("aten.elu.default", [x, 1.5, 2.0, 0.5])
    yield Call("aten.celu.default", [x, 2.0])
    yield Call("aten.leaky_relu.default", [x, 0.2])
    yield Call("aten.hardtanh.default", [x, -0.5, 2])
    yield Call("aten.softplus.default", [x, 2, 3.0])
    yield Call("aten._prelu_kernel.default", [x, normal(9)])
    yield Call("aten.threshold.default", [x, 0.5, 20.0])
    yield Call("aten.threshold.default", [special(), 0.5, 20.0])
    yield Call("aten.logit.default", [between(4, 9).abs()])
    yield Call("aten.logit.default", [torch.tensor([0.0, 0.2, 1.0]), 0.1])
    yield from _each("aten.glu.default", [normal(4, 6)], [normal(4, 6, dtype=torch.float16), 0])
    yield Call("aten.dropout.default", [x, 0.5, False])
    yield Call("aten.native_dropout.default", [x, 0.5, False])


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
            yield from _each(f"aten.{name}.default", [tensor], [tensor, 1], [tensor, 0, True])
        for name in ("max", "min"):
            yield from _each(f"aten.{name}.dim", [tensor, 1], [tensor, -1, True])
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
        yield from _each("aten.mean.dim", [tensor, [1]], [tensor, [0, -1], True])
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


def _creation() -> Iterator[Call]:
    yield from _each("aten.full.default", [[2, 3], 1.5], [[2], 7], [[], True])
    yield Call("aten.full.default", [[2, 3], 1.7], {"dtype": torch.int32})
    yield from _each("aten.scalar_tensor.default", [3], [-INF])
    yield Call("aten.scalar_tensor.default", [3.0], {"dtype": torch.float16})
    x = normal(2, 3)
    yield Call("aten.full_like.default", [x, 4])
    yield Call("aten.new_full.default", [x, [4], 4])
    yield Call("aten.fill.Scalar", [x, 4])
    yield Call("aten.fill.Tensor", [x, normal(dtype=INTS[0])])
    for name in ("zeros", "ones"):
        yield Call(f"aten.{name}.default", [[2, 3]])
        yield Call(f"aten.{name}_like.default", [x], {"dtype": torch.int8})
        yield Call(f"aten.new_{name}.default", [x, [4, 1]])
        yield Call(f"aten.new_{name}.default", [x, []], {"dtype": torch.bool})
    yield from _each("aten.arange.default", [5], [2.5])
    yield Call("aten.arange.default", [5], {"dtype": torch.float16})
    yield from _each("aten.arange.start", [2, 7], [-1.5, 2.0])
    yield from _each("aten.arange.start_step", [2, 9, 3], [9, 2, -3], [0, 1, 0.3], [3, 3, 1])
    for dtype in (torch.int64, torch.int32, torch.uint8):
        for ends in ([0.5, 7.9, 2.5], [9.9, 0.1, -1.5], [1.2, 6.0, 1]):
            yield Call("aten.arange.start_step", ends, {"dtype": dtype})
    iota = {"start": 3, "step": -2, "dtype": torch.int64, "device": "cpu", "requires_grad": False}
    yield Call("prims.iota.default", [5], iota)
    yield from _each("aten.linspace.default", [0, 1, 7], [3.0, -2.0, 4], [0, 1, 1])
    yield Call("aten.eye.default", [3])
    yield Call("aten.eye.m", [3, 5], {"dtype": torch.int64})


def _views() -> Iterator[Call]:
    x = normal(2, 3, 4)
    for name in [
        "alias",
        "clone",
        "detach",
        "lift_fresh",
        "lift_fresh_copy",
        "positive",
        "contiguous",
    ]:
        yield Call(f"aten.{name}.default", [x])
    yield Call("prims.view_of.default", [x])
    for name in ["view", "_unsafe_view", "reshape", "view_copy"]:
        yield from _each(f"aten.{name}.default", [x, [6, 4]], [x, [2, -1]], [x, [-1]])
    yield Call("aten._reshape_alias.default", [x, [6, 4], [4, 1]])
    yield from _each("aten.flatten.using_ints", [x], [x, 1, 2], [normal()])
    for name in ("permute", "permute_copy"):
        yield Call(f"aten.{name}.default", [x, [2, 0, -2]])
    for name in ("transpose.int", "swapaxes.default", "transpose_copy.int"):
        yield Call(f"aten.{name}", [x, 0, -1])
    for name in ("t", "t_copy"):
        yield from _each(f"aten.{name}.default", [x[0]], [normal(3)])
    yield from _each("aten.movedim.intlist", [x, [0], [-1]], [x, [0, 1], [1, 0]])
    for name in ("unsqueeze", "unsqueeze_copy"):
        yield from _each(f"aten.{name}.default", [x, 0], [x, -1], [normal(), 0])
    ones = normal(1, 3, 1)
    yield Call("aten.squeeze.default", [ones])
    for name in ("squeeze", "squeeze_copy"):
        yield from _each(f"aten.{name}.dim", [ones, 0], [ones, 1], [normal(), 0])
    yield Call("aten.squeeze.dims", [ones, [0, -1]])
    for name in ("expand", "expand_copy"):
        yield from _each(f"aten.{name}.default", [ones, [5, 3, 2]], [ones, [4, -1, 3, 2]])
    yield Call("aten.expand_as.default", [ones, normal(2, 3, 4)])
    yield Call("aten.pixel_shuffle.default", [normal(2, 12, 3, 4), 2])
    yield Call("aten.pixel_unshuffle.default", [normal(2, 3, 4, 6), 2])


def _slicing() -> Iterator[Call]:
    x = normal(5, 7, 2)
    bounds = (
        (1, 5, 2),
        (None, None, 1),
        (-3, None, 1),
        (0, -1, 1),
        (2, 9223372036854775807, 1),
        (6, 2, 1),
        (-99, 99, 3),
    )
    for start, end, step in bounds:
        yield Call("aten.slice.Tensor", [x, 1, start, end, step])
    yield Call("aten.slice_copy.Tensor", [x, 0, 1, 3])
    yield Call("aten.narrow.default", [x, 1, 2, 3])
    for name in ("select", "select_copy"):
        yield from _each(f"aten.{name}.int", [x, 1, 3], [x, -1, -2])
    for name in ("split", "unsafe_split"):
        yield from _each(f"aten.{name}.Tensor", [x, 3, 1], [x, 5])
    for name in ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes"):
        yield Call(f"aten.{name}.default", [x, [1, 4, 2], 1])
    yield Call("aten.chunk.default", [x, 3, 1])
    yield from _each("aten.unbind.int", [x, 2], [x])
    yield Call("aten.unbind_copy.int", [x, 2])
    yield Call("aten.flip.default", [x, [0, -1]])
    yield from _each("aten.roll.default", [x, [2], [1]], [x, [1, -2], [0, 1]])
    yield from _each(
        "aten.slice_scatter.default", [x, normal(5, 3, 2), 1, 2, 5], [x, normal(5, 7, 2, seed=1)]
    )
    yield Call("aten.select_scatter.default", [x, normal(5, 2), 1, -1])


def _joining() -> Iterator[Call]:
    x, y = normal(2, 3), normal(2, 5)
    for name in ("cat", "concat"):
        yield Call(f"aten.{name}.default", [[x, y], 1])
    yield Call("aten.cat.default", [[x, x.half()], 0])
    yield Call("aten.cat.default", [[torch.empty(0), x, normal(2, 3, dtype=INTS[0])], -2])
    yield from _each("aten.stack.default", [[x, x + 1]], [[x, x + 1], -1])
    yield from _each("aten.repeat.default", [x, [2, 3]], [x, [4, 1, 2]], [normal(), [2]])
    yield from _each("aten.repeat_interleave.self_int", [x, 2, 1], [x, 3])
    yield from _each(
        "aten.constant_pad_nd.default", [x, [1, 2]], [x, [1, -2, -1, 3], 5.0], [x, [0, 0]]
    )
    yield Call("aten.constant_pad_nd.default", [normal(3, dtype=torch.bool), [1, 1], 1])


def _indexing() -> Iterator[Call]:
    x = normal(5, 6, 7)
    for op in ("aten.index.Tensor", "aten._unsafe_index.Tensor"):
        yield Call(op, [x, [index(3, below=5)]])
        yield Call(op, [x, [None, index(2, 3, below=6)]])
        yield Call(op, [x, [index(3, 1, below=5), index(4, below=6)]])
        yield Call(op, [x, [None, index(3, 1, below=6), index(4, below=7)]])
        yield Call(op, [x, [index(3, 1, below=5), None, index(4, below=7)]])
        yield Call(op, [x, [index(3, below=5), index(3, below=6).int(), index(1, below=7)]])
    yield Call("aten.index_select.default", [x, 1, index(4, below=6).abs() % 6])
    table = normal(9, 4)
    rows = index(2, 3, below=9) % 9
    yield from _each("aten.embedding.default", [table, rows], [table, rows.int(), 0])
    yield from _each(
        "aten.gather.default", [x[0], 1, index(6, 3, below=7) % 7], [normal(), 0, torch.tensor(0)]
    )
    yield Call("aten.gather.default", [x, -3, index(2, 4, 5, below=5) % 5])
    yield Call("aten.take.default", [x, index(3, 2, below=210)])


def _selection() -> Iterator[Call]:
    mask = normal(3, 4, dtype=torch.bool)
    yield Call("aten.where.self", [mask, normal(3, 4), normal(4, dtype=torch.float64)])
    yield Call("aten.where.self", [mask, normal(dtype=torch.float64), normal(4)])
    yield Call("aten.where.self", [mask, normal(4, dtype=INTS[0]), normal(dtype=torch.float16)])
    yield Call("aten.where.ScalarOther", [mask, normal(4, dtype=INTS[1]), 2])
    yield Call("aten.where.ScalarSelf", [mask, 2.5, normal(4, dtype=INTS[1])])
    yield from _each("aten.where.Scalar", [mask, 1, 2.5], [mask, 1, 2])
    yield Call("aten.masked_fill.Scalar", [normal(3, 4), mask[0], -INF])
    yield Call("aten.masked_fill.Scalar", [normal(4, dtype=torch.float16), mask, 0.1])
    yield Call("aten.masked_fill.Tensor", [normal(3, 4), mask, torch.tensor(3)])
    for x in (special(), special(torch.float16), normal(5, dtype=INTS[0])):
        yield from _each("aten.clamp.default", [x, -1, 1], [x, None, 2], [x, 3, 1])
    yield Call("aten.clamp.default", [normal(5, dtype=INTS[0]), 0.5])
    yield Call("aten.clamp.Tensor", [normal(3, 4), normal(4), None])
    yield Call("aten.clamp.Tensor", [normal(3, 4), normal(4), normal(4) + 1])
    truths = normal(9, dtype=torch.bool), normal(9, dtype=torch.bool, seed=1)
    yield Call("aten.clamp.Tensor", [*truths])
    yield Call("aten.clamp_min.default", [special(), 0.0])
    yield Call("aten.clamp_min.Tensor", [normal(3, 4), normal(4)])
    yield Call("aten.clamp_max.default", [special(), 0.0])
    yield Call("aten.clamp_max.Tensor", [normal(3, 4), normal(4)])
    for name in ("triu", "tril"):
        yield from _each(
            f"aten.{name}.default",
            [normal(4, 5)],
            [normal(2, 4, 3), 1],
            [normal(4, 4, dtype=INTS[0]), -2],
        )
        yield Call(f"aten.{name}.default", [normal(4, 4, dtype=torch.bool)])


def _conversion() -> Iterator[Call]:
    values = torch.tensor([0.0, -0.0, 1.9, -1.9, 0.4, 100.5])
    for dtype in (*FLOATS, *INTS[:4], torch.bool):
        yield Call("aten._to_copy.default", [values], {"dtype": dtype})
        yield Call("prims.convert_element_type.default", [normal(4, dtype=INTS[0]), dtype])
    yield Call("aten._to_copy.default", [torch.tensor([NAN, INF, 0.0])], {"dtype": torch.bool})
    yield Call("aten.to.dtype", [values, torch.int32])
    yield Call("aten.copy.default", [normal(3, 6, dtype=INTS[1]), values])


def _losses() -> Iterator[Call]:
    pair = [normal(3, 4), normal(3, 4, seed=1)]
    for reduction in (0, 1, 2):
        yield Call("aten.mse_loss.default", [*pair, reduction])
        yield Call("aten.smooth_l1_loss.default", [*pair, reduction, 0.5])
