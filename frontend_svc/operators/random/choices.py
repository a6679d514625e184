"""Random choices and waiting times: coins, dropout, samples by weight, exponential and the like.

The probabilities in a tensor are taken as they are: that they lie between 0 and 1 (or are no less
than 0) is not checked, as on any accelerator.
"""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.random.bits import Draw
from frontend_svc.operators.random.numbers import check_float, end_of
from frontend_svc.operators.sorting.ordering import SORT_NOTE, ordered
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr

MAX_SAMPLES = 16
"""Samples of one row: each draws a number for every category."""


@decomposes("aten.bernoulli.default")
def bernoulli(op: Lowering, self: Tensor, *, generator: None = None) -> Tensor:
    """1 with each element as probability, else 0."""
    return _coins(op, self, self)


@decomposes("aten.bernoulli.Tensor")
def bernoulli_of_tensor(op: Lowering, self: Tensor, p: Tensor, *, generator: None = None) -> Tensor:
    """1 with the probabilities of another tensor, else 0."""
    return _coins(op, self, op.expand(p, self.shape))


@decomposes("aten.bernoulli.p")
def bernoulli_of_number(op: Lowering, self: Tensor, p: float, *, generator: None = None) -> Tensor:
    """1 with one probability, else 0."""
    return op.convert(_coin(op, self, p), self.dtype)


@decomposes("aten.dropout.default", note="extern for integers")
def dropout(op: Lowering, input: Tensor, p: float, train: bool) -> Tensor:
    """Elements dropped with a probability and the rest scaled; the operand itself in inference."""
    return input if not train or p == 0.0 else _dropped(op, input, p)[0]


@decomposes("aten.native_dropout.default", note="extern for integers")
def native_dropout(
    op: Lowering, input: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """As `dropout`, and the mask of what is kept."""
    if train is False or p == 0.0:
        return input, op.full(True, DType.BOOL, input.shape)
    return _dropped(op, input, p)


@decomposes("aten.rrelu_with_noise_functional.default")
def rrelu_with_noise(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    self: Tensor,
    noise: Tensor,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> tuple[Tensor, Tensor]:
    """A leaky relu whose slopes are random in training, and the slopes that were used."""
    check_float(self.dtype)
    low, high = _plain(lower), _plain(upper)
    x = op.widened(self)
    is_negative = op.apply("le", x, 0.0)
    if not training:
        leaky = op.where(op.apply("gt", x, 0.0), x, op.apply("mul", x, (low + high) / 2))
        return op.convert(leaky, self.dtype), noise
    if not low <= high:
        raise NotDecomposedError(f"slopes from {low} to {high}: the framework refuses them")
    drawn = op.apply("mul", Draw(op, self.shape).uniform(self.dtype), high - low)
    slope = op.where(is_negative, op.apply("add", drawn, low), 1.0)
    rounded = op.convert(slope, noise.dtype)
    result = op.where(is_negative, op.prim("mul", x, slope), x)
    return op.convert(result, self.dtype), rounded


@decomposes("aten.exponential.default")
def exponential(
    op: Lowering, self: Tensor, lambd: float = 1.0, *, generator: None = None
) -> Tensor:
    """Exponential numbers of a rate."""
    check_float(self.dtype)
    if not 0.0 < lambd < math.inf:
        raise NotDecomposedError(f"a rate of {lambd}: the framework handles it")
    drawn = Draw(op, self.shape).exponential(self.dtype)
    return op.convert(op.apply("mul", drawn, 1.0 / lambd) if lambd != 1.0 else drawn, self.dtype)


@decomposes("aten.cauchy.default")
def cauchy(
    op: Lowering, self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: None = None
) -> Tensor:
    """Numbers of the Cauchy distribution of a median and a width."""
    check_float(self.dtype)
    if not sigma > 0.0:
        raise NotDecomposedError(f"a width of {sigma}: the framework refuses it")
    drawn = op.apply("mul", Draw(op, self.shape).cauchy(self.dtype), sigma)
    return op.convert(op.apply("add", drawn, median), self.dtype)


@decomposes("aten.geometric.default")
def geometric(op: Lowering, self: Tensor, p: float, *, generator: None = None) -> Tensor:
    """Attempts up to the first success, at least 1, in any type."""
    if not 0.0 < p < 1.0:
        raise NotDecomposedError(f"a probability of {p}: the framework refuses it")
    if self.dtype is DType.BOOL:
        raise NotDecomposedError("attempts counted by bools: the framework refuses them")
    wide = DType.F64 if self.dtype is DType.F64 else DType.F32
    waited = op.apply("mul", Draw(op, self.shape).exponential(wide), -1.0 / math.log1p(-p))
    attempts = op.apply("maximum", op.prim("ceil", waited), 1.0)
    return op.convert(attempts, self.dtype)


@decomposes("aten.randperm.default", "aten.randperm.generator", note=SORT_NOTE)
def randperm(
    op: Lowering, n: Expr, *, generator: None = None, dtype: DType | None = DType.I64
) -> Tensor:
    """The integers below a number in a random order: that of as many words of 64 bits.

    Two words are equal, and their places then not random, once in 2**63 / n**2 permutations.
    """
    result = dtype or DType.I64
    if not n.is_constant or not 0 <= n.constant <= end_of(result):
        raise NotDecomposedError(f"a permutation of {n} in {result!r}: the framework makes it")
    return op.convert(ordered(op, Draw(op, (n,)).bits(), 0, descending=False), result)


@decomposes("aten.multinomial.default", note=SORT_NOTE)
def multinomial(
    op: Lowering,
    self: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: None = None,
) -> Tensor:
    """Categories by weight: each runs a race against the others, and the fastest is the sample.

    Waiting times of the rates that the weights state: the first to arrive is category k with
    probability weight k of the sum of weights. Of one race the first few to arrive are samples
    without replacement.
    """
    check_float(self.dtype)
    if not 1 <= self.rank <= 2:
        raise InvalidGraphError(f"weights with {self.rank} axes; expected 1 or 2")
    weights = op.widened(self)
    if num_samples > 1 and not replacement:
        return _fastest(op, weights, num_samples)
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise NotDecomposedError(f"{num_samples} samples of a row")
    rows, categories = self.shape[:-1], self.shape[-1]
    each = op.reshape(weights, (*rows, ONE, categories))
    each = op.expand(each, (*rows, as_expr(num_samples), categories))
    return op.reduce("argmax", _speeds(op, each), (each.rank - 1,))


def _speeds(op: Lowering, weights: Tensor) -> Tensor:
    return op.prim("div", weights, Draw(op, weights.shape).exponential(weights.dtype))


def _fastest(op: Lowering, weights: Tensor, count: int) -> Tensor:
    axis, categories = weights.rank - 1, weights.shape[-1]
    if not categories.is_constant or count > categories.constant:
        raise NotDecomposedError(f"{count} of {categories} categories without replacement")
    order = ordered(op, _speeds(op, weights), axis, descending=True)
    return op.slice_axis(order, axis, ZERO, as_expr(count))


def _coins(op: Lowering, self: Tensor, p: Tensor) -> Tensor:
    check_float(p.dtype)
    drawn = Draw(op, self.shape).uniform(p.dtype.compute_dtype)
    return op.convert(op.prim("lt", drawn, op.widened(p)), self.dtype)


def _coin(op: Lowering, self: Tensor, p: float) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise NotDecomposedError(f"a probability of {p}: the framework refuses it")
    if p in (0.0, 1.0):
        return op.full(p == 1.0, DType.BOOL, self.shape)
    return Draw(op, self.shape).is_below(p)


def _dropped(op: Lowering, x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    check_float(x.dtype)
    kept = _coin(op, x, 1.0 - p)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    # A product, not a selection: what is dropped keeps its NaN, as in PyTorch.
    wide = op.widened(x)
    masked = op.prim("mul", wide, op.convert(kept, wide.dtype))
    return op.convert(op.apply("mul", masked, scale), x.dtype), kept


def _plain(value: Number) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    raise NotDecomposedError("a slope is a symbolic size")
