"""Random choices and waiting times: coins, dropout, samples by weight, exponential numbers.

Probabilities and weights in a tensor are not checked for their range, as on any accelerator.
"""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.random.bits import Draw
from frontend_svc.operators.random.numbers import check_float, end_of
from frontend_svc.operators.sorting.ordering import decomposes_sort, ordered
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr

MAX_SAMPLES = 16
"""The largest number of samples of a row; each sample draws a number for every category."""


@decomposes("aten.bernoulli.default")
def bernoulli(builder: PrimsBuilder, self: Tensor, *, generator: None = None) -> Tensor:
    """1 with the probability that each element states, else 0."""
    return _coins(builder, self, self)


@decomposes("aten.bernoulli.Tensor")
def bernoulli_of_tensor(
    builder: PrimsBuilder, self: Tensor, p: Tensor, *, generator: None = None
) -> Tensor:
    """1 with the probabilities of another tensor, else 0."""
    return _coins(builder, self, builder.expand(p, self.shape))


@decomposes("aten.bernoulli.p")
def bernoulli_of_number(
    builder: PrimsBuilder, self: Tensor, p: float, *, generator: None = None
) -> Tensor:
    """1 with one probability, else 0."""
    return builder.convert(_coin(builder, self, p), self.dtype)


@decomposes("aten.dropout.default", note="extern for integers")
def dropout(builder: PrimsBuilder, input: Tensor, p: float, train: bool) -> Tensor:
    """Elements dropped with a probability and the rest scaled; the operand itself in inference."""
    return input if not train or p == 0.0 else _dropped(builder, input, p)[0]


@decomposes("aten.native_dropout.default", note="extern for integers")
def native_dropout(
    builder: PrimsBuilder, input: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """As `dropout`, and the mask of the elements that are kept."""
    if train is False or p == 0.0:
        return input, builder.full(True, DType.BOOL, input.shape)
    return _dropped(builder, input, p)


@decomposes("aten.rrelu_with_noise_functional.default")
def rrelu_with_noise(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    noise: Tensor,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> tuple[Tensor, Tensor]:
    """A leaky relu with random slopes in training, and the slopes that were used."""
    check_float(self.dtype)
    low, high = _plain(lower), _plain(upper)
    x = builder.widened(self)
    is_negative = builder.apply("le", x, 0.0)
    if not training:
        leaky = builder.where(
            builder.apply("gt", x, 0.0), x, builder.apply("mul", x, (low + high) / 2)
        )
        return builder.convert(leaky, self.dtype), noise
    if not low <= high:
        raise NotDecomposedError(f"slopes from {low} to {high}: the framework refuses them")
    drawn = builder.apply("mul", Draw(builder, self.shape).uniform(self.dtype), high - low)
    slope = builder.where(is_negative, builder.apply("add", drawn, low), 1.0)
    rounded = builder.convert(slope, noise.dtype)
    result = builder.where(is_negative, builder.prim("mul", x, slope), x)
    return builder.convert(result, self.dtype), rounded


@decomposes("aten.exponential.default")
def exponential(
    builder: PrimsBuilder, self: Tensor, lambd: float = 1.0, *, generator: None = None
) -> Tensor:
    """Exponential numbers with a rate."""
    check_float(self.dtype)
    if not 0.0 < lambd < math.inf:
        raise NotDecomposedError(f"a rate of {lambd}: the framework handles it")
    drawn = Draw(builder, self.shape).exponential(self.dtype)
    return builder.convert(
        builder.apply("mul", drawn, 1.0 / lambd) if lambd != 1.0 else drawn, self.dtype
    )


@decomposes("aten.cauchy.default")
def cauchy(
    builder: PrimsBuilder,
    self: Tensor,
    median: float = 0.0,
    sigma: float = 1.0,
    *,
    generator: None = None,
) -> Tensor:
    """Numbers of the Cauchy distribution with a median and a width."""
    check_float(self.dtype)
    if not sigma > 0.0:
        raise NotDecomposedError(f"a width of {sigma}: the framework refuses it")
    drawn = builder.apply("mul", Draw(builder, self.shape).cauchy(self.dtype), sigma)
    return builder.convert(builder.apply("add", drawn, median), self.dtype)


@decomposes("aten.geometric.default")
def geometric(builder: PrimsBuilder, self: Tensor, p: float, *, generator: None = None) -> Tensor:
    """The number of attempts up to the first success, at least 1, in any type."""
    if not 0.0 < p < 1.0:
        raise NotDecomposedError(f"a probability of {p}: the framework refuses it")
    if self.dtype is DType.BOOL:
        raise NotDecomposedError("attempts counted by bools: the framework refuses them")
    wide = DType.F64 if self.dtype is DType.F64 else DType.F32
    waited = builder.apply(
        "mul", Draw(builder, self.shape).exponential(wide), -1.0 / math.log1p(-p)
    )
    attempts = builder.apply("maximum", builder.prim("ceil", waited), 1.0)
    return builder.convert(attempts, self.dtype)


@decomposes_sort("aten.randperm.default", "aten.randperm.generator")
def randperm(
    builder: PrimsBuilder, n: Expr, *, generator: None = None, dtype: DType | None = DType.I64
) -> Tensor:
    """The integers below a number in random order: the order of as many words of 64 bits.

    Once in 2**63 / n**2 permutations two words are equal; then the order of the two is not random.
    """
    result = dtype or DType.I64
    if not n.is_constant or not 0 <= n.constant <= end_of(result):
        raise NotDecomposedError(f"a permutation of {n} in {result!r}: the framework makes it")
    return builder.convert(
        ordered(builder, Draw(builder, (n,)).bits(), 0, descending=False), result
    )


@decomposes_sort("aten.multinomial.default")
def multinomial(
    builder: PrimsBuilder,
    self: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: None = None,
) -> Tensor:
    """Categories by weight, from exponential waiting times whose rates are the weights.

    The shortest waiting time is that of category k with probability weight k / (sum of weights).
    The categories with the shortest few waiting times are samples without replacement.
    """
    check_float(self.dtype)
    if not 1 <= self.rank <= 2:
        raise InvalidGraphError(f"weights with {self.rank} axes; expected 1 or 2")
    weights = builder.widened(self)
    if num_samples > 1 and not replacement:
        return _fastest(builder, weights, num_samples)
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise NotDecomposedError(f"{num_samples} samples of a row")
    rows, categories = self.shape[:-1], self.shape[-1]
    each = builder.reshape(weights, (*rows, ONE, categories))
    each = builder.expand(each, (*rows, as_expr(num_samples), categories))
    return builder.reduce("argmax", _speeds(builder, each), (each.rank - 1,))


def _speeds(builder: PrimsBuilder, weights: Tensor) -> Tensor:
    return builder.prim("div", weights, Draw(builder, weights.shape).exponential(weights.dtype))


def _fastest(builder: PrimsBuilder, weights: Tensor, count: int) -> Tensor:
    axis, categories = weights.rank - 1, weights.shape[-1]
    if not categories.is_constant or count > categories.constant:
        raise NotDecomposedError(f"{count} of {categories} categories without replacement")
    order = ordered(builder, _speeds(builder, weights), axis, descending=True)
    return builder.slice_axis(order, axis, ZERO, as_expr(count))


def _coins(builder: PrimsBuilder, self: Tensor, p: Tensor) -> Tensor:
    check_float(p.dtype)
    drawn = Draw(builder, self.shape).uniform(p.dtype.compute_dtype)
    return builder.convert(builder.prim("lt", drawn, builder.widened(p)), self.dtype)


def _coin(builder: PrimsBuilder, self: Tensor, p: float) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise NotDecomposedError(f"a probability of {p}: the framework refuses it")
    if p in (0.0, 1.0):
        return builder.full(p == 1.0, DType.BOOL, self.shape)
    return Draw(builder, self.shape).is_below(p)


def _dropped(builder: PrimsBuilder, x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    check_float(x.dtype)
    kept = _coin(builder, x, 1.0 - p)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    # A product, not a selection: a dropped NaN stays NaN, as in PyTorch.
    wide = builder.widened(x)
    masked = builder.prim("mul", wide, builder.convert(kept, wide.dtype))
    return builder.convert(builder.apply("mul", masked, scale), x.dtype), kept


def _plain(value: Number) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    raise NotDecomposedError("a slope is a symbolic size")
