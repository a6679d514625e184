"""Loop kernels that scatter."""

from __future__ import annotations

SCATTER = """kernel scatter_{mode}_{dtype}
size n from 1
param in at: i64[n]
param in by: {dtype}[4*n]
param inout inout0: {dtype}[400]
for d0 in n
for d1 in 4
  %0: i64 = load at[d0]
  %1 = indirect %0 in 100
  %2: {dtype} = load by[4*d0 + d1]
  store {mode} inout0[4*%1 + d1] = %2
"""
