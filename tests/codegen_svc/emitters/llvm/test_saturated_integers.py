"""Conversions of floats to integers: numbers beyond the range give its ends, NaN gives 0."""

from __future__ import annotations

import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.loop_ir import Compute, Kernel, Load, Store
from tests.support.compiled_kernels import built, kernel, param, run, stage_text

FLOATS = {DType.F32: np.float32, DType.F64: np.float64}
INTEGERS = {DType.I32: np.int32, DType.I64: np.int64}


def conversion(source: DType, target: DType, count: int) -> Kernel:
    d0 = symbol("d0")
    body = (Load("in0", d0), Compute("convert", (0,), target), Store("out0", d0, 1))
    params = (param("in0", source, count), param("out0", target, count))
    return kernel(f"to_{target.value}", params, body, {"d0": count})


@pytest.mark.usefixtures("each_cpu_target")
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_numbers_beyond_an_integer_s_range_give_its_ends(source: DType, target: DType) -> None:
    dtype, kind = FLOATS[source], INTEGERS[target]
    ends = np.iinfo(kind)
    edge = dtype(2.0) ** (ends.bits - 1)
    inside = np.nextafter(edge, dtype(0))
    values = [np.nan, np.inf, -np.inf, edge, -edge, inside, -inside, 2 * edge, -3 * edge, 0.9, -0.9]
    x = np.array([*values, *range(-20, 20)], dtype)
    out = np.zeros(len(x), kind)
    assert run(conversion(source, target, len(x)), {"in0": x, "out0": out}) == 0
    exact = [0 if np.isnan(v) else v if np.isinf(v) else int(v) for v in x.tolist()]
    expected = [int(min(max(v, ends.min), ends.max)) for v in exact]
    assert out.tolist() == expected


@pytest.mark.parametrize("target", [DType.I8, DType.I32])
def test_vectors_are_converted_at_once(target: DType) -> None:
    asm = stage_text(built(conversion(DType.F32, target, 4096), "cpu:x86-64-v4"), "asm")
    assert "vcvttps2dq" in asm
    assert "vcvttss2si" not in asm
