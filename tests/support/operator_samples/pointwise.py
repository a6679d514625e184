"""Sample calls of operators that compute each element by itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch._inductor.inductor_prims  # registers prims.fma

from tests.support.operator_samples.tensors import (
    FLOATS,
    INF,
    INTS,
    NAN,
    between,
    normal,
    positive,
    special,
)
from tests.support.single_operator import Call, each_call


def pointwise_calls() -> Iterator[Call]:
    """Functions of elements, with all pairs of types."""
    for group in (
        _pointwise,
        _arithmetic,
        _comparison,
        _bits,
        _division,
        _power,
        _activations,
    ):
        yield from group()


def conversion_calls() -> Iterator[Call]:
    """Conversions between element types."""
    values = torch.tensor([0.0, -0.0, 1.9, -1.9, 0.4, 100.5])
    for dtype in (*FLOATS, *INTS[:4], torch.bool):
        yield Call("aten._to_copy.default", [values], {"dtype": dtype})
        yield Call("prims.convert_element_type.default", [normal(4, dtype=INTS[0]), dtype])
    yield Call("aten._to_copy.default", [torch.tensor([NAN, INF, 0.0])], {"dtype": torch.bool})
    yield Call("aten.to.dtype", [values, torch.int32])
    yield Call("aten.copy.default", [normal(3, 6, dtype=INTS[1]), values])


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
        yield from each_call(f"aten.{name}.default", [between(3, 5)], [between(3, dtype=FLOATS[2])])
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
        yield from each_call(
            f"aten.{name}.default", [special()[3:]], [normal(3, 5, dtype=torch.float16) * 4]
        )
    for name in ["floor", "ceil", "trunc", "round", "neg", "abs", "sign", "sgn"]:
        yield Call(f"aten.{name}.default", [normal(5, dtype=torch.int32) - 5])
    yield from each_call("aten.sign.default", [normal(4, dtype=torch.bool)])
    for decimals in (2, -1, 0):
        yield Call("aten.round.decimals", [normal(7) * 30], {"decimals": decimals})
    for name in ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"]:
        yield from each_call(
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
        yield from each_call(
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
        yield from each_call(
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
    yield from each_call("aten.logical_not.default", [special()], [normal(5, dtype=torch.bool)])
    yield from each_call(
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
    yield from each_call("aten.glu.default", [normal(4, 6)], [normal(4, 6, dtype=torch.float16), 0])
    yield Call("aten.dropout.default", [x, 0.5, False])
    yield Call("aten.native_dropout.default", [x, 0.5, False])
