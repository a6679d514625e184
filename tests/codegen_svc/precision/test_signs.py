"""No value has a sign that the analysis excludes."""

from __future__ import annotations

import itertools

import numpy as np

from codegen_svc.precision.signs import Signs, signs_of
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Kernel
from tests.support.loop_kernels.emitter_shapes import F32, Body, kernel, param

UNARY = (
    "neg abs exp exp2 sigmoid sqrt rsqrt erfc cosh tanh erf expm1 log1p sinh atan reciprocal sin"
)
BINARY = "add sub mul div maximum minimum"
NUMBERS = (-2.5, -0.5, 0.0, 0.5, 3.0)


def test_no_operation_has_a_sign_that_is_excluded() -> None:
    for op, count in [*((op, 1) for op in UNARY.split()), *((op, 2) for op in BINARY.split())]:
        for numbers in itertools.product(NUMBERS, repeat=count):
            assert _sign(*_evaluated(op, numbers)) in _known(op, numbers), (op, numbers)


def test_sums_and_maxima_keep_the_sign_that_their_terms_share() -> None:
    assert _known("add", (1.0, 0.0)) is Signs.POSITIVE
    assert _known("sub", (-1.0, 2.0)) is Signs.NEGATIVE
    assert _known("sub", (1.0, 2.0)) is Signs.ANY
    assert _known("maximum", (-1.0, 2.0)) is Signs.POSITIVE
    assert _known("minimum", (-1.0, 2.0)) is Signs.NEGATIVE
    assert _known("sin", (1.0,)) is Signs.ANY


def test_a_square_is_never_negative() -> None:
    body = Body()
    value = body.load("in0", 0)
    body.compute("mul", value, value)
    assert signs_of(_kernel(body))[-1] is Signs.POSITIVE


def _kernel(body: Body) -> Kernel:
    return kernel("k", [param("in0", F32, 1), param("out0", F32, 1)], {"d0": 1}, {}, body)


def _with_literals(op: str, numbers: tuple[float, ...]) -> Body:
    body = Body()
    body.compute(op, *(body.literal(F32, number) for number in numbers))
    return body


def _known(op: str, numbers: tuple[float, ...]) -> Signs:
    return signs_of(_kernel(_with_literals(op, numbers)))[-1]


def _evaluated(op: str, numbers: tuple[float, ...]) -> np.ndarray:
    body = _with_literals(op, numbers)
    body.store("out0", 0, len(body.statements) - 1)
    buffers = {"in0": np.zeros(1, np.float32), "out0": np.zeros(1, np.float32)}
    with np.errstate(all="ignore"):
        run_kernel(_kernel(body), buffers, {})
    return buffers["out0"]


def _sign(value: np.float32) -> Signs:
    return Signs.POSITIVE if value > 0 else Signs.NEGATIVE if value < 0 else Signs.NONE
