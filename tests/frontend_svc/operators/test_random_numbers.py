"""Random operators: their distributions, types and bounds, and the forms that are extern."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.operators import DECOMPOSED
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Ref, TensorType, seed_nodes
from kernelfarm.ir.interpret import run_graph
from kernelfarm.ir.verify import verify_graph
from tests.support.captured_graphs import one_node_graph
from tests.support.single_operator import Call, captured_graph, to_numpy, to_torch

COUNT = 20_000
SEED = 0x1234_5678_9ABC_DEF0
LARGEST_STEP = 2.7 / math.sqrt(COUNT)
"""Distance of an empirical distribution from the true one; chance exceeds it once in 2 million."""
SIGMAS = 5
F32 = DType.F32

X = torch.linspace(-3, 3, COUNT)
LOW = torch.full((COUNT,), 0.25)
Cdf = Callable[[np.ndarray], np.ndarray]

erf = np.vectorize(math.erf)


def drawn(call: Call, seed: int = SEED, *, is_symbolic: bool = False) -> list[torch.Tensor]:
    """The results of an operator's Prims for a seed."""
    graph = decompose_to_prims(captured_graph(call, is_symbolic=is_symbolic)).graph
    verify_graph(graph)
    assert "extern" not in [node.op for node in graph.nodes]
    seeds = [seed + number for number in range(len(seed_nodes(graph)))]
    results = run_graph(graph, [to_numpy(tensor) for tensor in call.tensors()], seeds=seeds)
    return [to_torch(np.asarray(result)) for result in results]


def uniform(low: float, high: float) -> Cdf:
    return lambda x: np.clip((x - low) / (high - low), 0, 1)


def normal(mean: float, deviation: float) -> Cdf:
    return lambda x: (1 + erf((x - mean) / (deviation * math.sqrt(2)))) / 2


def call(op: str, *args: Any, **kwargs: Any) -> Call:
    return Call(op, list(args), kwargs)


CONTINUOUS: dict[str, tuple[Call, Cdf]] = {
    "rand": (call("aten.rand.default", [100, COUNT // 100]), uniform(0, 1)),
    "rand f64": (call("aten.rand_like.default", X.double()), uniform(0, 1)),
    "rand f16": (call("aten.rand_like.default", X.half()), uniform(0, 1)),
    "rand bf16": (call("aten.rand_like.default", X, dtype=torch.bfloat16), uniform(0, 1)),
    "rand of a default generator": (
        call("aten.rand.generator", [COUNT], generator=None),
        uniform(0, 1),
    ),
    "rand_like of a default generator": (
        call("aten.rand_like.generator", X, generator=None),
        uniform(0, 1),
    ),
    "randn": (call("aten.randn.default", [COUNT]), normal(0, 1)),
    "randn f64": (call("aten.randn_like.default", X.double()), normal(0, 1)),
    "randn f16": (call("aten.randn_like.default", X.half()), normal(0, 1)),
    "randn of a default generator": (
        call("aten.randn.generator", [COUNT], generator=None),
        normal(0, 1),
    ),
    "randn_like of a default generator": (
        call("aten.randn_like.generator", X, generator=None),
        normal(0, 1),
    ),
    "uniform": (call("aten.uniform.default", X, -2.0, 5.0), uniform(-2, 5)),
    "uniform f64": (call("aten.uniform.default", X.double()), uniform(0, 1)),
    "normal_functional": (call("aten.normal_functional.default", X, 1.0, 3.0), normal(1, 3)),
    "normal of numbers": (call("aten.normal.float_float", -1.0, 0.5, [COUNT]), normal(-1, 0.5)),
    "normal of means": (call("aten.normal.Tensor_float", LOW, 2.0), normal(0.25, 2)),
    "normal of deviations": (call("aten.normal.float_Tensor", 1.0, LOW), normal(1, 0.25)),
    "normal of both": (call("aten.normal.Tensor_Tensor", LOW, LOW), normal(0.25, 0.25)),
    "log_normal": (
        call("aten.log_normal.default", X, 0.5, 0.75),
        lambda x: normal(0.5, 0.75)(np.log(x)),
    ),
    "exponential": (call("aten.exponential.default", X, 2.0), lambda x: 1 - np.exp(-2 * x)),
    "exponential f64": (call("aten.exponential.default", X.double()), lambda x: 1 - np.exp(-x)),
    "cauchy": (
        call("aten.cauchy.default", X, 1.0, 2.0),
        lambda x: 0.5 + np.arctan((x - 1) / 2) / math.pi,
    ),
    "cauchy f64": (
        call("aten.cauchy.default", X.double()),
        lambda x: 0.5 + np.arctan(x) / math.pi,
    ),
}


@pytest.mark.parametrize("seed", [SEED, 0, -1])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_follow_their_distribution(name: str, seed: int) -> None:
    """The statistic of Kolmogorov and Smirnov; steps of narrow types count as one."""
    made, cdf = CONTINUOUS[name]
    (result,) = drawn(made, seed)
    x = np.sort(result.double().numpy().reshape(-1))
    assert np.isfinite(x).all()
    coarse = torch.finfo(result.dtype).eps
    ranks = np.arange(x.size + 1) / x.size
    expected = cdf(x)
    step = max(np.abs(expected - ranks[1:]).max(), np.abs(expected - ranks[:-1]).max())
    assert step < LARGEST_STEP + coarse


def equally(*values: float) -> dict[float, float]:
    return {value: 1 / len(values) for value in values}


_WEIGHTS = [0.0, 1.0, 2.0, 5.0]
_GEOMETRIC = {float(k): 0.2 * 0.8 ** (k - 1) for k in range(1, 21)}

DISCRETE: dict[str, tuple[Call, dict[float, float]]] = {
    "randint": (call("aten.randint.default", 5, [COUNT]), equally(*range(5))),
    "randint of a default generator": (
        call("aten.randint.generator", 5, [COUNT], generator=None),
        equally(*range(5)),
    ),
    "randint from": (call("aten.randint.low", -3, 4, [COUNT]), equally(*range(-3, 4))),
    "randint from, of a default generator": (
        call("aten.randint.low_generator", -3, 4, [COUNT], generator=None),
        equally(*range(-3, 4)),
    ),
    "randint_like": (call("aten.randint_like.default", X, 7), equally(*range(7))),
    "randint_like of a default generator": (
        call("aten.randint_like.generator", X, 7, generator=None),
        equally(*range(7)),
    ),
    "randint_like from": (call("aten.randint_like.low_dtype", X, -1, 2), equally(-1, 0, 1)),
    "randint_like from, of a default generator": (
        call("aten.randint_like.low_generator_dtype", X, -1, 2, generator=None),
        equally(-1, 0, 1),
    ),
    "random to": (call("aten.random.to", X, 3), equally(0, 1, 2)),
    "random bytes": (call("aten.random.default", X.byte()), equally(*range(256))),
    "random bools": (call("aten.random.default", X > 0), equally(0, 1)),
    "bernoulli": (call("aten.bernoulli.default", LOW), {0: 0.75, 1: 0.25}),
    "bernoulli f64": (call("aten.bernoulli.default", LOW.double()), {0: 0.75, 1: 0.25}),
    "bernoulli of a number": (call("aten.bernoulli.p", X.int(), 0.9), {0: 0.1, 1: 0.9}),
    "bernoulli of a tensor": (call("aten.bernoulli.Tensor", X, LOW), {0: 0.75, 1: 0.25}),
    "geometric": (call("aten.geometric.default", X, 0.2), _GEOMETRIC),
    "geometric i64": (call("aten.geometric.default", X.long(), 0.2), _GEOMETRIC),
    "multinomial": (
        call("aten.multinomial.default", torch.tensor(_WEIGHTS).expand(COUNT, 4), 1),
        {k: weight / 8 for k, weight in enumerate(_WEIGHTS)},
    ),
    "multinomial, replaced": (
        call("aten.multinomial.default", torch.tensor(_WEIGHTS).expand(COUNT // 4, 4), 4, True),
        {k: weight / 8 for k, weight in enumerate(_WEIGHTS)},
    ),
    "dropout": (
        call("aten.dropout.default", torch.ones(COUNT), 0.2, True),
        {0: 0.2, float(torch.tensor(1.25)): 0.8},
    ),
}


@pytest.mark.parametrize("seed", [SEED, 0, -1])
@pytest.mark.parametrize("name", DISCRETE)
def test_numbers_have_their_frequencies(name: str, seed: int) -> None:
    """Pearson's chi-square; values without probability never occur."""
    made, frequencies = DISCRETE[name]
    (result,) = drawn(made, seed)
    values = result.double().reshape(-1)
    likely = {value: p for value, p in frequencies.items() if p * values.numel() >= 5}
    seen = {value: int((values == value).sum()) for value in likely}
    rest = 1 - sum(likely.values())
    expected = {value: p * values.numel() for value, p in likely.items()}
    chi_square = sum((seen[v] - expected[v]) ** 2 / expected[v] for v in likely)
    freedom = len(likely) - (rest < 1e-9)
    assert chi_square < freedom + SIGMAS * math.sqrt(2 * freedom) + SIGMAS**2
    if rest < 1e-9:
        assert sum(seen.values()) == values.numel()


def test_every_random_operator_is_tested_here() -> None:
    families = ("random.numbers", "random.choices")
    random = {name for name, operator in DECOMPOSED.items() if operator.family in families}
    tested = {made.op for made, _ in (*CONTINUOUS.values(), *DISCRETE.values())}
    others = {
        "aten.native_dropout.default",
        "aten.randperm.default",
        "aten.randperm.generator",
        "aten.rrelu_with_noise_functional.default",
    }
    assert random == tested | others


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_symbolic_sizes_give_the_numbers_of_static_ones(name: str) -> None:
    made = (CONTINUOUS | DISCRETE)[name][0]
    if not made.tensors():
        pytest.skip("its sizes are numbers")
    for static, symbolic in zip(drawn(made), drawn(made, is_symbolic=True), strict=True):
        torch.testing.assert_close(symbolic, static, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_types_and_shapes_equal_eager_s(name: str) -> None:
    made = (CONTINUOUS | DISCRETE)[name][0]
    for ours, theirs in zip(drawn(made), made.eager(), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32])
def test_permutations_contain_each_integer_once_at_random_positions(dtype: torch.dtype) -> None:
    named = {"dtype": dtype, "generator": None}
    (result,) = drawn(call("aten.randperm.generator", 1000, **named))
    torch.testing.assert_close(result.sort().values, torch.arange(1000).to(dtype))
    (other,) = drawn(call("aten.randperm.default", 1000, dtype=dtype), SEED + 1)
    for x in (result, other):
        positions = torch.arange(1000.0)
        correlation = float(torch.corrcoef(torch.stack([x.float(), positions]))[0, 1])
        assert abs(correlation) < SIGMAS / math.sqrt(1000)
    assert int((result == other).sum()) < 12  # one is expected


def test_samples_without_replacement_differ_and_follow_the_weights() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(COUNT, 4)
    (result,) = drawn(call("aten.multinomial.default", weights, 2))
    first, second = result.unbind(1)
    assert not bool((first == second).any())
    for k, weight in enumerate((0.1, 0.2, 0.3, 0.4)):
        spread = SIGMAS * math.sqrt(weight * (1 - weight) * COUNT)
        assert abs(int((first == k).sum()) - weight * COUNT) < spread
        # The second sample is k if the first is another one, by the weights that are left.
        rest = [w for w in (0.1, 0.2, 0.3, 0.4) if w != weight]
        chance = sum(w * weight / (1 - w) for w in rest)
        assert abs(int((second == k).sum()) - chance * COUNT) < SIGMAS * math.sqrt(COUNT) / 2


def test_native_dropout_scales_the_elements_that_its_mask_keeps() -> None:
    x = torch.linspace(1, 2, COUNT, dtype=torch.float16)
    result, mask = drawn(call("aten.native_dropout.default", x, 0.3, True))
    assert abs(int(mask.sum()) - 0.7 * COUNT) < SIGMAS * math.sqrt(0.21 * COUNT)
    torch.testing.assert_close(result, ((x * mask).float() * (1 / 0.7)).half())


def test_a_dropped_nan_stays_nan() -> None:
    x = torch.full((64,), math.nan)
    (result,) = drawn(call("aten.dropout.default", x, 0.5, True))
    assert bool(result.isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_leaky_slopes_are_random_below_zero_only(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    result, noise = drawn(
        call("aten.rrelu_with_noise_functional.default", x, torch.zeros_like(x), 0.1, 0.3, True)
    )
    positive = x > 0
    torch.testing.assert_close(result[positive], x[positive])
    assert bool((noise[positive] == 1).all())
    slopes = noise[~positive].double()
    assert 0.0999 <= float(slopes.min()) < float(slopes.max()) <= 0.3013
    assert abs(float(slopes.mean()) - 0.2) < 0.002
    bound = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(result[~positive], (x * noise)[~positive], rtol=bound, atol=0)


def without_chance() -> list[Call]:
    noise = torch.zeros(COUNT)
    return [
        call("aten.bernoulli.p", X, 0.0),
        call("aten.bernoulli.p", X.long(), 1.0),
        call("aten.bernoulli.default", torch.tensor([0.0, 1.0]).repeat(500)),
        call("aten.dropout.default", X, 0.0, True),
        call("aten.dropout.default", X, 0.5, False),
        call("aten.native_dropout.default", X, 0.0, True),
        call("aten.native_dropout.default", X, 0.9, False),
        call("aten.native_dropout.default", X, 1.0, True),
        call("aten.normal_functional.default", X, 2.5, 0.0),
        call("aten.uniform.default", X, 3.0, 3.0),
        call("aten.randint.low", 4, 5, [7]),
        call("aten.multinomial.default", torch.tensor([0.0, 0.0, 3.0, 0.0]), 1),
        call("aten.rrelu_with_noise_functional.default", X, noise, 0.1, 0.3, False),
    ]


@pytest.mark.parametrize("number", range(len(without_chance())))
def test_values_that_are_certain_equal_eager_s(number: int) -> None:
    made = without_chance()[number]
    for ours, theirs in zip(drawn(made), made.eager(), strict=True):
        torch.testing.assert_close(ours, theirs)


REFUSED = {
    "a negative deviation": ("aten.normal_functional.default", F32, (0.0, -1.0)),
    "bounds in the wrong order": ("aten.uniform.default", F32, (2.0, 1.0)),
    "a probability above 1": ("aten.bernoulli.p", F32, (1.5,)),
    "dropout of integers": ("aten.dropout.default", DType.I64, (0.5, True)),
    "a rate of 0": ("aten.exponential.default", F32, (0.0,)),
    "a width of 0": ("aten.cauchy.default", F32, (0.0, 0.0)),
    "success for certain": ("aten.geometric.default", F32, (1.0,)),
    "an empty range": ("aten.randint_like.low_dtype", F32, (3, 3)),
    "a bound beyond the type": ("aten.randint_like.low_dtype", DType.U8, (0, 300)),
    "more integers than 64 bits count": (
        "aten.randint_like.low_dtype",
        DType.I64,
        (-(1 << 63), (1 << 63) - 1),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_framework_raises_its_own_errors(name: str) -> None:
    op, dtype, args = REFUSED[name]
    tensor = TensorType(dtype, (as_expr(4),))
    graph = one_node_graph(op, [tensor], [Ref(0), *args], tensor)
    assert [node.op for node in decompose_to_prims(graph).graph.nodes] == ["extern"]


def test_the_framework_draws_random_numbers_if_requested() -> None:
    graph = captured_graph(call("aten.rand_like.default", X))
    lowered = decompose_to_prims(graph, fallback_random=True)
    assert [node.op for node in lowered.graph.nodes] == ["extern"]
    assert "fallback_random" in lowered.report[0].detail


def test_uniform_numbers_stay_below_1_in_every_type() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        (result,) = drawn(call("aten.rand_like.default", torch.zeros(200_000, dtype=dtype)))
        assert 0 <= float(result.min()) < 1e-2
        assert 0.99 < float(result.double().max()) < 1 or dtype is torch.bfloat16
        assert float(result.double().max()) < 1


def test_bounds_that_rounding_would_reach_are_not_reached() -> None:
    x = torch.zeros(100_000, dtype=torch.float16)
    (result,) = drawn(call("aten.uniform.default", x, 1000.0, 1001.0))
    assert sorted(result.unique().tolist()) == [1000.0, 1000.5]


def test_neighbours_and_operators_are_uncorrelated() -> None:
    (first,), (second,) = (
        drawn(call("aten.rand.default", [COUNT]), seed) for seed in (SEED, SEED + 1)
    )
    for a, b in ((first[1:], first[:-1]), (first[97:], first[:-97]), (first, second)):
        correlation = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
        assert abs(correlation) < SIGMAS / math.sqrt(COUNT)


def test_large_ranges_reach_both_ends() -> None:
    low, high = -(1 << 62), 1 << 62
    (result,) = drawn(call("aten.randint.low", low, high - 1, [COUNT]))
    assert int(result.min()) < low + (1 << 52)
    assert int(result.max()) > high - (1 << 52)
