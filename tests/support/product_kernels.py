"""Products of matrices as loop kernels: a layer without and with what is fused with it."""

from __future__ import annotations

import math
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.loop_ir import Axis, Kernel, Load
from kernelfarm.ir.panel_order import LANE_BYTES, PanelOrder
from kernelfarm.ir.text import parse_kernel


def linear(rows: int, columns: int, summed: int, dtype: str = "bf16") -> Kernel:
    """x (rows, summed) by the transpose of a weight (columns, summed)."""
    return parse_kernel(f"""\
kernel linear
param in in0: {dtype}[{rows * summed}]
param in in1: {dtype}[{columns * summed}]
param out out0: {dtype}[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: {dtype} = load in0[{summed}*d0 + r0]
  %1: f32 = convert %0
  %2: {dtype} = load in1[{summed}*d1 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: {dtype} = convert %5
  store out0[{columns}*d0 + d1] = %6
""")


def mixed(
    rows: int | str, columns: int, summed: int, left: str, right: str, *, has_columns: bool
) -> Kernel:
    """x (rows, summed) by a weight of another type; with `has_columns` it is (summed, columns).

    The number of rows may be the symbol s0.
    """
    at = f"d1 + {columns}*r0" if has_columns else f"{summed}*d1 + r0"
    size = f"size {rows} from 0 to 4096\n" if isinstance(rows, str) else ""
    return parse_kernel(f"""\
kernel mixed
{size}param in in0: {left}[{summed}*{rows}]
param in in1: {right}[{columns * summed}]
param out out0: f32[{columns}*{rows}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: {left} = load in0[{summed}*d0 + r0]
  %1: f32 = convert %0
  %2: {right} = load in1[{at}]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  store out0[{columns}*d0 + d1] = %5
""")


def gated(rows: int, columns: int, summed: int, dtype: str = "bf16") -> Kernel:
    """The SiLU of one product times another product of the same rows."""
    return parse_kernel(f"""\
kernel gated
param in in0: {dtype}[{rows * summed}]
param in in1: {dtype}[{columns * summed}]
param in in2: {dtype}[{columns * summed}]
param out out0: {dtype}[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: {dtype} = load in0[{summed}*d0 + r0]
  %1: f32 = convert %0
  %2: {dtype} = load in1[{summed}*d1 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: {dtype} = load in2[{summed}*d1 + r0]
  %7: f32 = convert %6
  %8: f32 = mul %1, %7
  %9: f32 = sum %8
  %10: f32 = sigmoid %5
  %11: f32 = mul %5, %10
  %12: f32 = mul %11, %9
  %13: {dtype} = convert %12
  store out0[{columns}*d0 + d1] = %13
""")


def scaled(summed: int, dtype: str = "bf16") -> Kernel:
    """A varying number of rows, scaled by a number of each, by a weight of bytes with a scale.

    The weight (4, summed, 12) has contiguous columns, of which a bias and a residual are added.
    """
    columns = 48
    return parse_kernel(f"""\
kernel scaled
size s0 from 1 to 4096
param in in0: {dtype}[{summed}*s0]
param in in1: f32[s0]
param in in2: i8[{columns * summed}]
param in in3: f32[{columns}]
param in in4: {dtype}[{columns}]
param in in5: {dtype}[{columns}*s0]
param out out0: {dtype}[{columns}*s0]
for d0 in s0
for d1 in 4
for d2 in 12
reduce r0 in {summed}
  %0: {dtype} = load in0[{summed}*d0 + r0]
  %1: f32 = convert %0
  %2: f32 = load in1[d0]
  %3: f32 = div %1, %2
  %4: {dtype} = convert %3
  %5: f32 = convert %4
  %6: i8 = load in2[{12 * summed}*d1 + 12*r0 + d2]
  %7: f32 = convert %6
  %8: f32 = load in3[12*d1 + d2]
  %9: f32 = mul %7, %8
  %10: {dtype} = convert %9
  %11: f32 = convert %10
  %12: f32 = mul %11, %5
  %13: f32 = sum %12
  %14: {dtype} = load in4[12*d1 + d2]
  %15: f32 = convert %14
  %16: f32 = add %13, %15
  %17: {dtype} = load in5[{columns}*d0 + 12*d1 + d2]
  %18: f32 = convert %17
  %19: f32 = add %16, %18
  %20: {dtype} = convert %19
  store out0[{columns}*d0 + 12*d1 + d2] = %20
""")


def sliced(slices: int, rows: int, columns: int, summed: int, dtype: str = "bf16") -> Kernel:
    """The sums of slices of `summed` elements of x (rows, -) by a weight (-, columns), in f32."""
    whole = slices * summed
    return parse_kernel(f"""\
kernel sliced
param in in0: {dtype}[{rows * whole}]
param in in1: {dtype}[{columns * whole}]
param out out0: f32[{slices * rows * columns}]
for d0 in {slices}
for d1 in {rows}
for d2 in {columns}
reduce r0 in {summed}
  %0: {dtype} = load in0[{summed}*d0 + {whole}*d1 + r0]
  %1: f32 = convert %0
  %2: {dtype} = load in1[{columns * summed}*d0 + d2 + {columns}*r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  store out0[{rows * columns}*d0 + {columns}*d1 + d2] = %5
""")


def batched(first: int, second: int, rows: int, columns: int, summed: int) -> Kernel:
    """x (first, second, rows, summed) by the transposes of weights (first, second, columns, -)."""
    x, weight, result = rows * summed, columns * summed, rows * columns
    return parse_kernel(f"""\
kernel batched
param in in0: bf16[{first * second * x}]
param in in1: bf16[{first * second * weight}]
param out out0: bf16[{first * second * result}]
for d0 in {first}
for d1 in {second}
for d2 in {rows}
for d3 in {columns}
reduce r0 in {summed}
  %0: bf16 = load in0[{second * x}*d0 + {x}*d1 + {summed}*d2 + r0]
  %1: f32 = convert %0
  %2: bf16 = load in1[{second * weight}*d0 + {weight}*d1 + {summed}*d3 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: bf16 = convert %5
  store out0[{second * result}*d0 + {result}*d1 + {columns}*d2 + d3] = %6
""")


def vector(columns: int, summed: int) -> Kernel:
    """GELU's tanh of x (summed) by a weight (summed, columns), plus a bias."""
    return parse_kernel(f"""\
kernel vector
param in in0: bf16[{summed}]
param in in1: bf16[{columns * summed}]
param in in2: bf16[{columns}]
param out out0: bf16[{columns}]
for d0 in {columns}
reduce r0 in {summed}
  %0: bf16 = load in0[r0]
  %1: f32 = convert %0
  %2: bf16 = load in1[d0 + {columns}*r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: bf16 = load in2[d0]
  %7: f32 = convert %6
  %8: f32 = add %5, %7
  %9: f32 = tanh %8
  %10: bf16 = convert %9
  store out0[d0] = %10
""")


def wide(rows: int | str, columns: int, summed: int | str, *, has_columns: bool = False) -> Kernel:
    """x (rows, summed) by a weight of f32, (columns, summed) or with columns (summed, columns).

    Then GELU of the sums and a bias, plus a residual. Sizes may be the symbols s0 and s1.
    """
    at = f"{columns}*r0 + d1" if has_columns else f"{summed}*d1 + r0"
    sizes = [f"size {s} from 0 to 4096\n" for s in (rows, summed) if isinstance(s, str)]
    return parse_kernel(f"""\
kernel wide
{"".join(sizes)}param in in0: f32[{rows}*{summed}]
param in in1: f32[{columns}*{summed}]
param in in2: f32[{columns}]
param in in3: f32[{columns}*{rows}]
param out out0: f32[{columns}*{rows}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: f32 = load in0[{summed}*d0 + r0]
  %1: f32 = load in1[{at}]
  %2: f32 = mul %0, %1
  %3: f32 = sum %2
  %4: f32 = load in2[d1]
  %5: f32 = add %3, %4
  %6: f32 = 0.7071067811865476
  %7: f32 = mul %5, %6
  %8: f32 = erf %7
  %9: f32 = 1.0
  %10: f32 = add %8, %9
  %11: f32 = 0.5
  %12: f32 = mul %5, %11
  %13: f32 = mul %12, %10
  %14: f32 = load in3[{columns}*d0 + d1]
  %15: f32 = add %13, %14
  store out0[{columns}*d0 + d1] = %15
""")


def wide_batched(batches: int, rows: int, columns: int, summed: int) -> Kernel:
    """x (batches, rows, summed) by weights (batches, columns, summed) of f32, rounded to bf16."""
    x, weight, result = rows * summed, columns * summed, rows * columns
    return parse_kernel(f"""\
kernel wide_batched
param in in0: f32[{batches * x}]
param in in1: f32[{batches * weight}]
param out out0: bf16[{batches * result}]
for d0 in {batches}
for d1 in {rows}
for d2 in {columns}
reduce r0 in {summed}
  %0: f32 = load in0[{x}*d0 + {summed}*d1 + r0]
  %1: f32 = load in1[{weight}*d0 + {summed}*d2 + r0]
  %2: f32 = mul %1, %0
  %3: f32 = sum %2
  %4: bf16 = convert %3
  store out0[{result}*d0 + {columns}*d1 + d2] = %4
""")


def with_residuals(
    rows: int, columns: int, summed: int, dtype: str = "f16", residuals: int = 1
) -> Kernel:
    """x (rows, summed) by the transpose of a weight, plus residuals that are loaded before."""
    lines = [f"param in in{n}: {dtype}[{rows * columns}]" for n in range(2, 2 + residuals)]
    loads = [f"  %{n}: {dtype} = load in{n + 2}[{columns}*d0 + d1]" for n in range(residuals)]
    at, last = residuals, residuals + 5
    body = [
        f"  %{at}: {dtype} = load in0[{summed}*d0 + r0]",
        f"  %{at + 1}: f32 = convert %{at}",
        f"  %{at + 2}: {dtype} = load in1[{summed}*d1 + r0]",
        f"  %{at + 3}: f32 = convert %{at + 2}",
        f"  %{at + 4}: f32 = mul %{at + 1}, %{at + 3}",
        f"  %{at + 5}: f32 = sum %{at + 4}",
    ]
    for n in range(residuals):
        body.append(f"  %{last + 1}: f32 = convert %{n}")
        body.append(f"  %{last + 2}: f32 = add %{last}, %{last + 1}")
        last += 2
    text = "\n".join([*lines, f"param out out0: {dtype}[{rows * columns}]"])
    return parse_kernel(f"""\
kernel with_residuals
param in in0: {dtype}[{rows * summed}]
param in in1: {dtype}[{columns * summed}]
{text}
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
{chr(10).join([*loads, *body])}
  %{last + 1}: {dtype} = convert %{last}
  store out0[{columns}*d0 + d1] = %{last + 1}
""")


def biased_gelu(rows: int, columns: int, summed: int, dtype: str = "f16") -> Kernel:
    """GELU of a linear layer with a bias: x (rows, summed), a weight (columns, summed)."""
    return parse_kernel(f"""\
kernel biased_gelu
param in in0: {dtype}[{rows * summed}]
param in in1: {dtype}[{columns * summed}]
param in in2: {dtype}[{columns}]
param out out0: {dtype}[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: {dtype} = load in0[{summed}*d0 + r0]
  %1: f32 = convert %0
  %2: {dtype} = load in1[{summed}*d1 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: {dtype} = load in2[d1]
  %7: f32 = convert %6
  %8: f32 = add %5, %7
  %9: f32 = 0.7071067811865476
  %10: f32 = mul %8, %9
  %11: f32 = erf %10
  %12: f32 = 1.0
  %13: f32 = add %11, %12
  %14: f32 = 0.5
  %15: f32 = mul %8, %14
  %16: f32 = mul %15, %13
  %17: {dtype} = convert %16
  store out0[{columns}*d0 + d1] = %17
""")


def gradient(rows: int, columns: int, summed: int, dtype: str = "bf16") -> Kernel:
    """The transpose of x (summed, rows) by y (summed, columns), as for a weight's gradient."""
    return parse_kernel(f"""\
kernel gradient
param in in0: {dtype}[{rows * summed}]
param in in1: {dtype}[{columns * summed}]
param out out0: {dtype}[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: {dtype} = load in0[{rows}*r0 + d0]
  %1: f32 = convert %0
  %2: {dtype} = load in1[{columns}*r0 + d1]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: {dtype} = convert %5
  store out0[{columns}*d0 + d1] = %6
""")


def padded(rows: int, columns: int, summed: int, inside: int) -> Kernel:
    """x (rows, summed), of which points with row + column from `inside` on are 0.5, by a weight."""
    return parse_kernel(f"""\
kernel padded
param in in0: f16[{rows * summed}]
param in in1: f16[{columns * summed}]
param out out0: f16[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: i64 = index d0 + r0
  %1: i64 = {inside}
  %2: bool = lt %0, %1
  %3: f16 = 0.5
  %4: f16 = load in0[{summed}*d0 + r0] if %2 else %3
  %5: f32 = convert %4
  %6: f16 = load in1[{summed}*d1 + r0]
  %7: f32 = convert %6
  %8: f32 = mul %5, %7
  %9: f32 = sum %8
  %10: f16 = convert %9
  store out0[{columns}*d0 + d1] = %10
""")


def added(rows: int, columns: int, summed: int, dtype: str = "bf16") -> Kernel:
    """The sum of two products of other rows by other weights."""
    return parse_kernel(f"""\
kernel added
param in in0: {dtype}[{rows * summed}]
param in in1: {dtype}[{columns * summed}]
param in in2: {dtype}[{rows * summed}]
param in in3: {dtype}[{columns * summed}]
param out out0: {dtype}[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {summed}
  %0: {dtype} = load in0[{summed}*d0 + r0]
  %1: f32 = convert %0
  %2: {dtype} = load in1[{summed}*d1 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: {dtype} = load in2[{summed}*d0 + r0]
  %7: f32 = convert %6
  %8: {dtype} = load in3[{summed}*d1 + r0]
  %9: f32 = convert %8
  %10: f32 = mul %7, %9
  %11: f32 = sum %10
  %12: f32 = add %5, %11
  %13: {dtype} = convert %12
  store out0[{columns}*d0 + d1] = %13
""")


def stored(rows: int, columns: int, summed: int, width: int, dtype: str = "bf16") -> Kernel:
    """x (rows, summed) by a weight that is in memory in panels of so many columns."""
    order = PanelOrder(width, LANE_BYTES // DType(dtype).itemsize_bytes)
    axes = (Axis("d1", as_expr(columns)), Axis("r0", as_expr(summed)))
    position = order.index(*axes)
    kernel = mixed(rows, columns, summed, dtype, dtype, has_columns=False)
    weight = replace(kernel.params[1], size_elems=as_expr(math.prod(order.shape(columns, summed))))
    body = [
        replace(statement, index=position)
        if isinstance(statement, Load) and statement.param == "in1"
        else statement
        for statement in kernel.body
    ]
    params = (kernel.params[0], weight, *kernel.params[2:])
    return replace(kernel, params=params, body=tuple(body))
