"""Kernels whose bytes depend on their loops, as text."""

from __future__ import annotations

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel

CONTIGUOUS = "802816*d0 + 12544*d1 + d2"
CHANNELS_LAST = "802816*d0 + d1 + 64*d2"


def batch_norm_relu(read: str = CONTIGUOUS, written: str = CONTIGUOUS) -> Kernel:
    """Batch norm and ReLU of bf16 (32, 64, 112 x 112), in the frontend's order of axes."""
    return parse_kernel(f"""\
kernel batch_norm_relu
param in in0: bf16[25690112]
param in in1: f32[64]
param in in2: f32[64]
param in in3: f32[64]
param in in4: f32[64]
param out out0: bf16[25690112]
for d0 in 32
for d1 in 64
for d2 in 12544
  %0: bf16 = load in0[{read}]
  %1: f32 = convert %0
  %2: f32 = load in1[d1]
  %3: f32 = sub %1, %2
  %4: f32 = load in2[d1]
  %5: f32 = mul %3, %4
  %6: f32 = load in3[d1]
  %7: f32 = mul %5, %6
  %8: f32 = load in4[d1]
  %9: f32 = add %7, %8
  %10: f32 = 0.0
  %11: f32 = maximum %9, %10
  %12: bf16 = convert %11
  store out0[{written}] = %12
""")


def transposing_add(rows: int, columns: int, dtype: str = "f32") -> Kernel:
    """The sum of a matrix and the transpose of another one."""
    elems = rows * columns
    return parse_kernel(f"""\
kernel transposing_add
param in in0: {dtype}[{elems}]
param in in1: {dtype}[{elems}]
param out out0: {dtype}[{elems}]
for d0 in {rows}
for d1 in {columns}
  %0: {dtype} = load in0[{columns}*d0 + d1]
  %1: {dtype} = load in1[d0 + {rows}*d1]
  %2: {dtype} = add %0, %1
  store out0[{columns}*d0 + d1] = %2
""")


def matrix_sum(rows: int, columns: int, read: str) -> Kernel:
    """Sums along r0 of an f32 matrix."""
    return parse_kernel(f"""\
kernel matrix_sum
param in in0: f32[{rows * columns}]
param out out0: f32[{rows}]
for d0 in {rows}
reduce r0 in {columns}
  %0: f32 = load in0[{read}]
  %1: f32 = sum %0
  store out0[d0] = %1
""")
