"""Scalar operations of the interpreter against PyTorch."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret.scalar_ops import compute
from kernelfarm.ir.prims import BOOL_RESULTS, PRIMS, SCALAR_OPS
from kernelfarm.ir.scalar_types import SCALAR_TYPES

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}

REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "reciprocal": torch.reciprocal,
    "round_even": torch.round,
    "bitwise_not": torch.bitwise_not,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod_floor": torch.remainder,
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr_arith": torch.bitwise_right_shift,
}

FLOATS = [
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5, -2.5, 3.7, -3.7, 1e-30, -1e-30, 1e30, -1e30,
    88.0, -88.0, 700.0, -700.0, 0.1, 0.9999, -0.9999, np.inf, -np.inf, np.nan,
]  # fmt: skip
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 7, -7, 5, 100, -100, 127, -128]


def samples(dtype: DType) -> torch.Tensor:
    if dtype.is_float:
        return torch.tensor(FLOATS, dtype=TORCH[dtype])
    if dtype is DType.BOOL:
        return torch.tensor([False, True])
    return torch.tensor(INTEGERS).to(TORCH[dtype])


def operands(op: str, dtype: DType) -> list[torch.Tensor]:
    """All pairs of samples, without those for which PyTorch raises or promises nothing."""
    x = samples(dtype)
    if PRIMS[op].arity == 1:
        return [x]
    a, b = (t.reshape(-1) for t in torch.meshgrid(x, x, indexing="ij"))
    if op in ("floor_div", "trunc_div", "mod_floor", "fmod") and dtype.is_integer:
        a, b = a[b != 0], b[b != 0]
        # The most negative number divided by -1 overflows.
        keep = ~((a == torch.iinfo(a.dtype).min) & (b.to(torch.int64) == -1))
        a, b = a[keep], b[keep]
    if op in ("fmod", "mod_floor") and dtype.is_float:
        # PyTorch's vectorized fmod gives NaN where the quotient exceeds the mantissa.
        keep = ~((a / b).abs() > 1e7) | torch.isinf(a) | (b == 0)
        a, b = a[keep], b[keep]
    if op in ("shl", "shr_arith"):
        keep = (b.to(torch.int64) >= 0) & (b.to(torch.int64) < 8)
        a, b = a[keep], b[keep]
    return [a, b]


def cases() -> list[Any]:
    found = []
    for op in sorted(SCALAR_OPS - {"where", "convert", "philox"}):
        for dtype in TORCH:
            if SCALAR_TYPES[op].has(dtype):
                found.append(pytest.param(op, dtype, id=f"{op}-{dtype.value}"))
    return found


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_a_scalar_operation_equals_pytorch(op: str, dtype: DType) -> None:
    inputs = operands(op, dtype)
    reference = REFERENCE.get(op) or getattr(torch, op)
    expected = reference(*inputs).numpy()
    result_dtype = DType.BOOL if op in BOOL_RESULTS else dtype
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = compute(op, [t.numpy() for t in inputs], result_dtype)
    assert actual.dtype == expected.dtype
    if not dtype.is_float or op in BOOL_RESULTS:
        np.testing.assert_array_equal(actual, expected)
        return
    # Two libraries round transcendental functions a few ulps apart; near 0 they may flush.
    resolution = 2e-15 if dtype is DType.F64 else 2e-6
    tiny = np.finfo(expected.dtype).tiny
    np.testing.assert_allclose(actual, expected, rtol=resolution, atol=tiny, equal_nan=True)
    if op in ("fmax", "fmin", "maximum", "minimum"):
        return  # which of two zeros is larger is nowhere promised
    exact = expected == 0
    np.testing.assert_array_equal(np.signbit(actual[exact]), np.signbit(expected[exact]))


@pytest.mark.parametrize("source", TORCH, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("target", TORCH, ids=lambda dtype: dtype.value)
def test_conversion_equals_pytorch(source: DType, target: DType) -> None:
    x = samples(source)
    if source.is_float and target.is_integer:
        # Outside the target's range the result is undefined, in PyTorch as in C.
        info = torch.iinfo(TORCH[target])
        x = x[torch.isfinite(x) & (x > max(info.min, -(2**60)) - 1) & (x < min(info.max, 2**60))]
    actual = compute("convert", [x.numpy()], target)
    np.testing.assert_array_equal(actual, x.to(TORCH[target]).numpy())


def test_nan_converts_to_true() -> None:
    assert compute("convert", [np.array([np.nan, 0.0, -0.0])], DType.BOOL).tolist() == [
        True,
        False,
        False,
    ]


def test_where_does_not_let_nan_through_from_the_branch_not_taken() -> None:
    chosen = compute(
        "where", [np.array([True, False]), np.ones(2), np.array([np.nan, 2.0])], DType.F64
    )
    assert chosen.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_narrow_floats_compute_in_f32_and_round_once(name: str) -> None:
    dtype = DType(name)
    wide = {"bf16": torch.bfloat16, "f16": torch.float16}[name]
    x = torch.linspace(-20, 20, 4001, dtype=wide)
    narrow = compute("convert", [x.to(torch.float32).numpy()], dtype)
    for op in ("exp", "sigmoid", "tanh", "erf"):
        actual = compute("convert", [compute(op, [narrow], dtype)], DType.F32)
        expected = getattr(torch, op)(x.to(torch.float64)).to(torch.float32).to(wide)
        # One unit of the narrow type where f32 and f64 round to different sides of a tie.
        np.testing.assert_allclose(
            actual, expected.to(torch.float32).numpy(), rtol=2**-7 if name == "bf16" else 2**-10
        )


@pytest.mark.parametrize("op", ["erf", "erfc"])
def test_the_error_function_is_accurate_in_double(op: str) -> None:
    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    expected = getattr(torch, op)(x).numpy()
    np.testing.assert_allclose(compute(op, [x.numpy()], DType.F64), expected, rtol=1e-14)


def test_every_scalar_operation_has_a_reference_in_this_test() -> None:
    missing = [op for op in SCALAR_OPS if op not in REFERENCE and not hasattr(torch, op)]
    assert sorted(missing) == ["convert", "philox"]  # bits: see test_random_bits
