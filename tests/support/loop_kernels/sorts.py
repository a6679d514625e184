"""Loop kernels that sort, and rows for them."""

from __future__ import annotations

import numpy as np

from kernelfarm.dtypes import DType
from tests.support.compiled_kernels import NUMPY


def row_elements(dtype: DType, count: int, seed: int = 0) -> np.ndarray:
    """Many ties; floats with NaN, infinities and both zeros."""
    random = np.random.default_rng(seed)
    low = 0 if dtype in (DType.U8, DType.BOOL) else -9
    x = random.integers(low, 9, count).astype(NUMPY[dtype])
    if dtype.is_float and count:
        x *= random.integers(0, 3, count).astype(x.dtype) * 0.5
        for value in (np.nan, np.nan, np.inf, -np.inf, -0.0):
            x[random.integers(0, count)] = value
    return x


AMONG_OTHERS = """kernel among_others
param in in0: f32[210]
param out out0: f32[210]
param out out1: f32[7]
param out out2: i64[210]
param out out3: f32[210]
for d0 in 7
reduce r0 in 5
reduce r1 in 6
  %0: f32 = load in0[30*d0 + 6*r0 + r1]
  %1: f32 = sum %0
  %2: f32 = div %0, %1
  %3: i64 = sort descending %2
  %4 = indirect %3 in 30
  %5: f32 = load in0[30*d0 + %4]
  %6: f32 = scan cumsum %5
  %7: f32 = amax %6
  %8: i64 = sort ascending %6
  %9: i64 = sort ascending %5
  %10: i64 = add %8, %9
  store out0[30*d0 + 6*r0 + r1] = %6
  store out1[d0] = %7
  store out2[30*d0 + 6*r0 + r1] = %10
  store out3[30*d0 + 6*r0 + r1] = %5
"""
