"""Every elementary function stays within its stated error, and treats special values as C does."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest

from codegen_svc.emitters.llvm.math_functions import coefficients as committed
from codegen_svc.emitters.llvm.math_functions.erf import MATH_FUNCTIONS
from kernelfarm.dtypes import DType
from tests.codegen_svc.emitters.llvm import fit_coefficients
from tests.support.compiled_kernels import NUMPY, pointwise, run

pytestmark = pytest.mark.usefixtures("each_cpu_target")

COUNT = 60_000
# Ranges in which nothing overflows, sampled densely beside the random bit patterns.
USUAL_RANGE = {
    "exp": (-90, 89),
    "exp2": (-130, 128),
    "expm1": (-20, 89),
    "sin": (-200, 200),
    "cos": (-200, 200),
    "tan": (-200, 200),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atanh": (-1, 1),
    "acosh": (1, 50),
    "erf": (-5, 5),
    "erfc": (-6, 11),
    "log1p": (-1, 4),
}
SPECIAL = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    1e-40,
    -1e-40,
    1e-310,
)
# Smallest results that are judged: erfc's exponential factor loses bits among denormals.
SMALLEST = {"erfc": 1e-300}


def _samples(op: str, dtype: np.dtype, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    pattern = generator.integers(0, 2 ** (8 * dtype.itemsize), COUNT, dtype=f"u{dtype.itemsize}")
    low, high = USUAL_RANGE.get(op, (-20, 20))
    dense = generator.uniform(low, high, COUNT).astype(dtype)
    small = (
        generator.standard_normal(COUNT // 4) * 10.0 ** generator.uniform(-9, 0, COUNT // 4)
    ).astype(dtype)
    return np.concatenate([np.array(SPECIAL, dtype), pattern.view(dtype), dense, small])


def _reference(op: str, arguments: list[np.ndarray]) -> np.ndarray:
    """The exact values, in a wider format."""
    wide = [a.astype(np.longdouble) for a in arguments]
    names = {
        "asin": "arcsin",
        "acos": "arccos",
        "atan": "arctan",
        "asinh": "arcsinh",
        "acosh": "arccosh",
        "atanh": "arctanh",
        "atan2": "arctan2",
        "pow": "power",
    }
    with np.errstate(all="ignore"):
        if op == "sigmoid":
            return 1 / (1 + np.exp(-wide[0]))
        if op in ("erf", "erfc"):
            function = getattr(mpmath, op)
            # Beyond 30 both are at their limits, and mpmath does not take every double.
            clipped = np.clip(wide[0], -30, 30)
            return np.array([np.longdouble(mpmath.nstr(function(float(v)), 25)) for v in clipped])
        return getattr(np, names.get(op, op))(*wide)


def _worst_ulp(result: np.ndarray, exact: np.ndarray, smallest: float) -> tuple[float, int]:
    """The largest error in units of the exact value's last place; special values must be equal."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(result.dtype)
    same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    special = ~np.isfinite(rounded) | ~np.isfinite(result)
    with np.errstate(all="ignore"):
        ulp = np.spacing(np.abs(np.where(special, 1, rounded))).astype(np.longdouble)
        error = np.abs(result.astype(np.longdouble) - exact) / ulp
    error = np.where(special, np.where(same, 0, np.inf), error)
    # A result next to overflow may round either way.
    largest = np.finfo(result.dtype).max
    error = np.where(special & ~same & (np.abs(exact) > largest * 0.999999), 0, error)
    error = np.where(np.abs(exact) < smallest, 0, error)
    worst = int(np.argmax(error))
    return float(error[worst]), worst


def _check(op: str, dtype: DType, arguments: list[np.ndarray], bound: float) -> None:
    count = len(arguments[0])
    kernel = pointwise(op, (dtype,) * len(arguments), dtype, count)
    out = np.zeros(count, NUMPY[dtype])
    assert run(kernel, {**{f"in{k}": a for k, a in enumerate(arguments)}, "out0": out}) == 0
    exact = _reference(op, arguments)
    error, at = _worst_ulp(out, exact, SMALLEST.get(op, 0.0))
    where = [a[at] for a in arguments]
    assert error <= bound, f"{op}{where} = {out[at]!r}, exact {exact[at]!r}: {error:.2f} ULP"


UNARY = sorted(op for op in MATH_FUNCTIONS if op not in ("pow", "atan2"))
SLOW_REFERENCE = ("erf", "erfc")


@pytest.mark.parametrize("op", UNARY)
def test_f32_function_is_within_its_stated_error(op: str) -> None:
    x = _samples(op, np.dtype(np.float32), 1)
    if op in SLOW_REFERENCE:
        x = np.concatenate([x[: len(SPECIAL)], x[len(SPECIAL) :: 24]])
    _check(op, DType.F32, [x], MATH_FUNCTIONS[op].max_ulp_f32)


@pytest.mark.parametrize("op", UNARY)
def test_f64_function_is_within_its_stated_error(op: str) -> None:
    x = _samples(op, np.dtype(np.float64), 2)
    if op in SLOW_REFERENCE:
        x = np.concatenate([x[: len(SPECIAL)], x[len(SPECIAL) :: 24]])
    _check(op, DType.F64, [x], MATH_FUNCTIONS[op].max_ulp_f64)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
@pytest.mark.parametrize("op", ["pow", "atan2"])
def test_function_of_two_arguments_is_within_its_stated_error(op: str, dtype: DType) -> None:
    generator = np.random.default_rng(3)
    pairs = np.array([(a, b) for a in SPECIAL for b in (*SPECIAL, 3.0, -3.0, 1e20)])
    top = 40 if op == "pow" else 1e3
    dense = np.stack([generator.uniform(0, top, COUNT), generator.uniform(-20, 20, COUNT)], axis=1)
    negative = np.stack([generator.uniform(-9, 9, COUNT), generator.integers(-9, 9, COUNT)], axis=1)
    near_one = np.stack(
        [1 + generator.uniform(-0.1, 0.1, COUNT), generator.uniform(-900, 900, COUNT)], axis=1
    )
    both = np.concatenate([pairs, dense, negative, near_one]).astype(NUMPY[dtype])
    function = MATH_FUNCTIONS[op]
    bound = function.max_ulp_f32 if dtype is DType.F32 else function.max_ulp_f64
    _check(op, dtype, [np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])], bound)


def test_sine_of_a_huge_argument_is_exact() -> None:
    """Values from mpmath with 400 digits: naive reductions lose everything here."""
    x = np.array([1e22, 1e300, 2.0**1023, 6381956970095103 * 2.0**797, 1e6, 1e15], np.float64)
    with mpmath.workdps(420):
        exact = np.array(
            [np.longdouble(mpmath.nstr(mpmath.sin(mpmath.mpf(float(v))), 25)) for v in x]
        )
    out = np.zeros(len(x))
    run(pointwise("sin", (DType.F64,), DType.F64, len(x)), {"in0": x, "out0": out})
    error, _ = _worst_ulp(out, exact, 0.0)
    assert error <= MATH_FUNCTIONS["sin"].max_ulp_f64


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_usual_and_large_angles_of_f32_are_exact_in_the_same_call(op: str) -> None:
    """Blocks with only usual angles take another way than those with a large one."""
    generator = np.random.default_rng(4)
    usual = generator.uniform(-4096, 4096, 3 * COUNT).astype(np.float32)
    # The floats next to multiples of pi/2, of which the remainder has only bits of its last terms.
    turns = (np.arange(1, 2600) * (np.pi / 2)).astype(np.float32)
    large = np.float32(2.0) ** generator.uniform(12, 127.9, COUNT).astype(np.float32)
    x = np.concatenate([usual, turns, [-0.0, np.inf], large]).astype(np.float32)
    _check(op, DType.F32, [x], MATH_FUNCTIONS[op].max_ulp_f32)
    zeros = np.full(64, -0.0, np.float32)
    out = np.ones(64, np.float32)
    run(pointwise(op, (DType.F32,), DType.F32, 64), {"in0": zeros, "out0": out})
    assert (np.signbit(out) == (op == "sin")).all()


def test_coefficients_are_those_that_the_script_fits() -> None:
    with open(committed.__file__, encoding="utf-8") as file:
        assert file.read() == fit_coefficients.render()


@pytest.fixture(autouse=True)
def _numpy_overflow_is_expected():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
