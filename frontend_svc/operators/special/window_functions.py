"""Window functions of signals, and the frequencies of Fourier transforms."""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import DEFAULT_FLOAT
from frontend_svc.operators.core.real_formulas import Real
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.special.modified_bessel import bessel_i0
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import as_expr

_HAMMING = (0.54, 0.46)
_KAISER = 12.0
"""PyTorch's default parameters."""


def _numbers(builder: PrimsBuilder, length: int, dtype: DType) -> Tensor:
    if length < 0 or not dtype.is_float:
        raise InvalidGraphError(f"a window of {length} elements of {dtype!r}; expected floats")
    return builder.convert(builder.iota(as_expr(length)), dtype.compute_dtype)


def _span(length: int, *, periodic: bool) -> int:
    """Steps from the first element to the last one of the whole window."""
    return max(length if periodic else length - 1, 1)


def _raised_cosine(
    builder: PrimsBuilder,
    length: int,
    periodic: bool,
    shape: tuple[float, float],
    dtype: DType | None,
) -> Tensor:
    """alpha - beta * cos(2 pi k / n)."""
    result, (alpha, beta) = dtype or DEFAULT_FLOAT, shape
    numbers = _numbers(builder, length, result)
    if length == 1:
        return builder.full(1.0, result, numbers.shape)
    angle = builder.apply("mul", numbers, 2.0 * math.pi / _span(length, periodic=periodic))
    wave = builder.apply("mul", builder.prim("cos", angle), -beta)
    return builder.convert(builder.apply("add", wave, alpha), result)


@decomposes("aten.hann_window.default", "aten.hann_window.periodic")
def hann_window(
    builder: PrimsBuilder, window_length: int, periodic: bool = True, *, dtype: DType | None = None
) -> Tensor:
    """Hann's window."""
    return _raised_cosine(builder, window_length, periodic, (0.5, 0.5), dtype)


@decomposes(
    "aten.hamming_window.default",
    "aten.hamming_window.periodic",
    "aten.hamming_window.periodic_alpha",
    "aten.hamming_window.periodic_alpha_beta",
)
def hamming_window(
    builder: PrimsBuilder,
    window_length: int,
    periodic: bool = True,
    alpha: float = _HAMMING[0],
    beta: float = _HAMMING[1],
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Hamming's window."""
    return _raised_cosine(builder, window_length, periodic, (alpha, beta), dtype)


@decomposes("aten.blackman_window.default", "aten.blackman_window.periodic")
def blackman_window(
    builder: PrimsBuilder, window_length: int, periodic: bool = True, *, dtype: DType | None = None
) -> Tensor:
    """Blackman's window."""
    result = dtype or DEFAULT_FLOAT
    numbers = _numbers(builder, window_length, result)
    if window_length == 1:
        return builder.full(1.0, result, numbers.shape)
    angle = builder.apply("mul", numbers, math.pi / _span(window_length, periodic=periodic))
    fast = builder.apply("mul", builder.prim("cos", builder.apply("mul", angle, 4.0)), 0.08)
    slow = builder.apply("mul", builder.prim("cos", builder.apply("mul", angle, 2.0)), 0.5)
    return builder.convert(builder.apply("add", builder.apply("sub", fast, slow), 0.42), result)


@decomposes("aten.bartlett_window.default", "aten.bartlett_window.periodic")
def bartlett_window(
    builder: PrimsBuilder, window_length: int, periodic: bool = True, *, dtype: DType | None = None
) -> Tensor:
    """Bartlett's window, a triangle."""
    result = dtype or DEFAULT_FLOAT
    numbers = _numbers(builder, window_length, result)
    if window_length == 1:
        return builder.full(1.0, result, numbers.shape)
    slope = builder.apply("mul", numbers, 2.0 / _span(window_length, periodic=periodic))
    return builder.convert(
        builder.apply("minimum", slope, builder.apply("sub", 2.0, slope)), result
    )


@decomposes("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")
def kaiser_window(
    builder: PrimsBuilder,
    window_length: int,
    periodic: bool = True,
    beta: float = _KAISER,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Kaiser's window, by the modified Bessel function of order 0."""
    result = dtype or DEFAULT_FLOAT
    numbers = _numbers(builder, window_length, result)
    if window_length == 1:
        return builder.full(1.0, result, numbers.shape)
    position = builder.apply("mul", numbers, 2.0 / _span(window_length, periodic=periodic))
    position = builder.apply("sub", position, 1.0)
    under = builder.apply(
        "maximum", builder.apply("sub", 1.0, builder.apply("mul", position, position)), 0.0
    )
    shaped = bessel_i0(Real(builder, builder.apply("mul", builder.prim("sqrt", under), beta)))
    whole = bessel_i0(Real(builder, builder.full(beta, position.dtype)))
    return builder.convert((shaped / whole).tensor, result)


@decomposes("aten.fft_fftfreq.default")
def fft_fftfreq(
    builder: PrimsBuilder, n: int, d: float = 1.0, *, dtype: DType | None = None
) -> Tensor:
    """The frequencies of a transform of n samples at a distance of d; negative ones last."""
    numbers = builder.iota(as_expr(n)) if n > 0 else _numbers(builder, n, dtype or DEFAULT_FLOAT)
    is_upper = builder.apply("ge", numbers, (n + 1) // 2)
    turned = builder.where(is_upper, builder.apply("sub", numbers, n), numbers)
    return _frequencies(builder, turned, n, d, dtype or DEFAULT_FLOAT)


@decomposes("aten.fft_rfftfreq.default")
def fft_rfftfreq(
    builder: PrimsBuilder, n: int, d: float = 1.0, *, dtype: DType | None = None
) -> Tensor:
    """The frequencies of a transform of n real samples at a distance of d."""
    return _frequencies(builder, builder.iota(as_expr(n // 2 + 1)), n, d, dtype or DEFAULT_FLOAT)


def _frequencies(builder: PrimsBuilder, numbers: Tensor, n: int, d: float, dtype: DType) -> Tensor:
    if n < 1 or d == 0.0:
        raise InvalidGraphError(
            f"{n} samples at a distance of {d}; expected at least one, and a distance other than 0"
        )
    wide = builder.convert(numbers, dtype.compute_dtype)
    return builder.convert(builder.apply("mul", wide, 1.0 / (n * d)), dtype)
