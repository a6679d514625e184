"""Products of 8-bit integers as loop kernels, and their exact results."""

from __future__ import annotations

import numpy as np

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel


def bytes_product(
    rows: int | str,
    columns: int,
    summed: int,
    *,
    has_columns: bool = False,
    has_rows: bool = False,
) -> Kernel:
    """x (rows, summed) by a weight (columns, summed), or with columns (summed, columns), in i32.

    One row has no axis; the number of rows may be the symbol s0. If it `has_rows`, x is (summed,
    rows).
    """
    at = f"d1 + {columns}*r0" if has_columns else f"{summed}*d1 + r0"
    size = f"size {rows} from 0 to 4096\n" if isinstance(rows, str) else ""
    axis, x, out = f"for d0 in {rows}\n", f"{summed}*d0 + r0", f"{columns}*d0 + d1"
    if has_rows:
        x = f"{rows}*r0 + d0"
    if rows == 1:
        axis, x, out = "", "r0", "d1"
    return parse_kernel(f"""\
kernel bytes
{size}param in in0: i8[{summed}*{rows}]
param in in1: i8[{columns * summed}]
param out out0: i32[{columns}*{rows}]
{axis}for d1 in {columns}
reduce r0 in {summed}
  %0: i8 = load in0[{x}]
  %1: i32 = convert %0
  %2: i8 = load in1[{at}]
  %3: i32 = convert %2
  %4: i32 = mul %1, %3
  %5: i32 = sum %4
  store out0[{out}] = %5
""")


def batched_bytes_product(batches: int, rows: int, columns: int, summed: int) -> Kernel:
    """x (batches, rows, summed) by weights (batches, columns, summed), in i32."""
    axis, x, out = f"for d1 in {rows}\n", f"{summed}*d1 + ", f"{columns}*d1 + "
    if rows == 1:
        axis = x = out = ""
    return parse_kernel(f"""\
kernel batched
param in in0: i8[{batches * rows * summed}]
param in in1: i8[{batches * columns * summed}]
param out out0: i32[{batches * rows * columns}]
for d0 in {batches}
{axis}for d2 in {columns}
reduce r0 in {summed}
  %0: i8 = load in0[{rows * summed}*d0 + {x}r0]
  %1: i32 = convert %0
  %2: i8 = load in1[{columns * summed}*d0 + {summed}*d2 + r0]
  %3: i32 = convert %2
  %4: i32 = mul %1, %3
  %5: i32 = sum %4
  store out0[{rows * columns}*d0 + {out}d2] = %5
""")


def byte_factors(
    rows: int, columns: int, summed: int, *, has_columns: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of all values, of which the first row and the first column have the least one."""
    draw = np.random.default_rng(rows * columns + summed).integers
    weight = (summed, columns) if has_columns else (columns, summed)
    x, w = (draw(-128, 128, shape, dtype=np.int8) for shape in ((rows, summed), weight))
    x[:1] = -128
    if has_columns:
        w[:, :1] = -128
    else:
        w[:1] = -128
    return x, w


def exact_product(x: np.ndarray, w: np.ndarray, *, has_columns: bool = False) -> np.ndarray:
    """The product, computed in 64 bits."""
    wide = w.astype(np.int64)
    return (x.astype(np.int64) @ (wide if has_columns else wide.T)).astype(np.int32)
