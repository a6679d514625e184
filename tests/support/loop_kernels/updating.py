"""Kernels that overwrite what they read, and kernels with several scatters, for all backends."""

from __future__ import annotations

import numpy as np

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel

_TEXTS = {
    # Rotated keys and values of 7 new tokens go to caches of 50.
    "caches": """kernel caches
param in position: i64[7]
param in k: f32[7*24]
param in v: f32[7*24]
param inout keys: f32[50*24]
param inout values: f32[50*24]
for d0 in 7
for d1 in 24
  %0: i64 = load position[d0]
  %1 = indirect %0 in 50
  %2: f32 = load k[24*d0 + d1]
  %3: f32 = sin %2
  %4: f32 = load v[24*d0 + d1]
  store keys[24*%1 + d1] = %3
  store values[24*%1 + d1] = %4
""",
    "momentum": """kernel momentum
param in grad: f32[1000]
param inout weight: f32[1000]
param inout moment: f32[1000]
for d0 in 1000
  %0: f32 = load moment[d0]
  %1: f32 = 0.5
  %2: f32 = mul %0, %1
  %3: f32 = load grad[d0]
  %4: f32 = add %2, %3
  %5: f32 = load weight[d0]
  %6: f32 = sub %5, %4
  store weight[d0] = %6
  store moment[d0] = %4
""",
    # Every element is read for the sum, for the maximum and for itself before it is written.
    "centred": """kernel centred
param inout x: f32[9*70]
param out top: f32[9]
for d0 in 9
reduce r0 in 70
  %0: f32 = load x[70*d0 + r0]
  %1: f32 = sum %0
  %2: f32 = sub %0, %1
  %3: f32 = amax %2
  %4: f32 = sub %2, %3
  store top[d0] = %3
  store x[70*d0 + r0] = %4
""",
    "statistics": """kernel statistics
param in x: f32[9*70]
param inout mean: f32[9]
for d0 in 9
reduce r0 in 70
  %0: f32 = load x[70*d0 + r0]
  %1: f32 = sum %0
  %2: f32 = load mean[d0]
  %3: f32 = sub %2, %1
  store mean[d0] = %3
""",
}


def updating_kernels() -> dict[str, Kernel]:
    """The kernels by name."""
    kernels = {name: parse_kernel(text) for name, text in _TEXTS.items()}
    for kernel in kernels.values():
        verify_kernel(kernel)
    return kernels


def updating_buffers(kernel: Kernel) -> dict[str, np.ndarray]:
    """Random elements; positions are distinct, so that every order of updates is one."""
    random = np.random.default_rng(3)
    found = {}
    for param in kernel.params:
        count = param.size_elems.as_int()
        is_index = param.name == "position"
        made = random.permutation(50)[:count] if is_index else random.normal(size=count)
        found[param.name] = made.astype(np.int64 if is_index else np.float32)
    return found
