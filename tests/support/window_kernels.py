"""Loop kernels of depthwise convolutions, and their values in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import NUMPY, run

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DepthwiseCase:
    """A convolution of images (n, h, w, c) by a weight (kh, kw, c), both row-major.

    `after` are statements that compute `%out` of `%sum`, a bias `%bias`, a residual `%more`.
    """

    images: int
    image: tuple[int, int]
    channels: int
    window: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    dtype: str = "f32"
    after: str = ""

    @property
    def result(self) -> tuple[int, int]:
        """The height and width of a result."""
        down, across = (
            (extent + 2 * padding - self.dilation * (window - 1) - 1) // self.stride + 1
            for extent, padding, window in zip(self.image, self.padding, self.window, strict=True)
        )
        return down, across


_HALF_UNITS = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
"""What a result is rounded by when it is stored, as a share of it."""
_AFTER = {
    "": "%out: f32 = add %sum, %bias",
    "residual": "%t: f32 = add %sum, %bias\n  %out: f32 = add %t, %more",
    "hardswish": """%t: f32 = add %sum, %bias
  %three: f32 = 3.0
  %six: f32 = 6.0
  %nought: f32 = 0.0
  %u: f32 = add %t, %three
  %v: f32 = maximum %u, %nought
  %w: f32 = minimum %v, %six
  %x: f32 = mul %t, %w
  %out: f32 = div %x, %six""",
    "sigmoid": "%t: f32 = add %sum, %bias\n  %out: f32 = sigmoid %t",
}


def depthwise_kernel(case: DepthwiseCase) -> Kernel:
    """The kernel: in0 the images, in1 the weight, in2 a bias of f32, in3 a residual, out0."""
    (height, width), (down, across) = case.image, case.result
    c, d, s, t = case.channels, case.dilation, case.stride, case.dtype
    pixels = case.images * down * across * c
    row, column = f"{s}*d1 + {d}*r0", f"{s}*d2 + {d}*r1"
    at = (
        f"{height * width * c}*d0 + {s * width * c}*d1 + {s * c}*d2 + d3"
        f" + {d * width * c}*r0 + {d * c}*r1 - {(case.padding[0] * width + case.padding[1]) * c}"
    )
    out = f"{down * across * c}*d0 + {across * c}*d1 + {c}*d2 + d3"
    text = f"""\
kernel windows
param in in0: {t}[{case.images * height * width * c}]
param in in1: {t}[{case.window[0] * case.window[1] * c}]
param in in2: f32[{c}]
param in in3: {t}[{pixels}]
param out out0: {t}[{pixels}]
for d0 in {case.images}
for d1 in {down}
for d2 in {across}
for d3 in {c}
reduce r0 in {case.window[0]}
reduce r1 in {case.window[1]}
  %zero: {t} = 0.0
  %zero32: f32 = convert %zero
  %row: i64 = index {row}
  %top: i64 = {case.padding[0]}
  %a: bool = ge %row, %top
  %bottom: i64 = {case.padding[0] + height}
  %b: bool = lt %row, %bottom
  %ab: bool = logical_and %a, %b
  %column: i64 = index {column}
  %left: i64 = {case.padding[1]}
  %c: bool = ge %column, %left
  %abc: bool = logical_and %ab, %c
  %right: i64 = {case.padding[1] + width}
  %d: bool = lt %column, %right
  %mask: bool = logical_and %abc, %d
  %loaded: {t} = load in0[{at}] if %mask else %zero
  %wide: f32 = convert %loaded
  %image: f32 = where %mask, %wide, %zero32
  %loadedw: {t} = load in1[{case.window[1] * c}*r0 + {c}*r1 + d3]
  %weight: f32 = convert %loadedw
  %product: f32 = mul %image, %weight
  %sum: f32 = sum %product
  %bias: f32 = load in2[d3]
  %loadedm: {t} = load in3[{out}]
  %more: f32 = convert %loadedm
  {_AFTER[case.after]}
  %stored: {t} = convert %out
  store out0[{out}] = %stored
"""
    return parse_kernel(_numbered(text))


def _numbered(text: str) -> str:
    """The text with numbers for names of values, and without conversions that change no type."""
    names: dict[str, str] = {}
    lines = []
    for line in text.splitlines():
        words = line.replace(",", " ,").split(" ")
        words = [names.get(word, word) for word in words]
        stripped = line.strip()
        if stripped.startswith("%"):
            name, kind = stripped.split(" ")[:2]
            name = name.rstrip(":")
            operand = stripped.split(" ")[-1]
            if " = convert " in stripped and kind == "f32" and names["@" + operand] == "f32":
                names[name], names["@" + name] = names[operand], kind
                continue
            names[name] = f"%{sum(1 for key in lines if key.startswith('  %'))}"
            names["@" + name] = kind
            words = [names[name] + ":" if word == name + ":" else word for word in words]
        lines.append(" ".join(words).replace(" ,", ","))
    return "\n".join(lines) + "\n"


def operands_of_case(case: DepthwiseCase, seed: int = 0) -> dict[str, Array]:
    """Random buffers of the kernel of a case."""
    draw = np.random.default_rng(seed)
    kernel = depthwise_kernel(case)
    return {
        param.name: draw.standard_normal(param.size_elems.constant).astype(NUMPY[param.dtype])
        for param in kernel.params
    }


def expected_result(case: DepthwiseCase, buffers: dict[str, Array]) -> Array:
    """The result in float64, from float64 values of the operands."""
    (height, width), (down, across) = case.image, case.result
    c = case.channels
    x = buffers["in0"].astype(np.float64).reshape(case.images, height, width, c)
    w = buffers["in1"].astype(np.float64).reshape(*case.window, c)
    top, left = case.padding
    padded = np.pad(x, ((0, 0), (top, top), (left, left), (0, 0)))
    total = np.zeros((case.images, down, across, c))
    for r in range(case.window[0]):
        for q in range(case.window[1]):
            rows = slice(r * case.dilation, r * case.dilation + case.stride * (down - 1) + 1)
            columns = slice(q * case.dilation, q * case.dilation + case.stride * (across - 1) + 1)
            total += padded[:, rows, columns][:, :: case.stride, :: case.stride] * w[r, q]
    total += buffers["in2"].astype(np.float64)
    if case.after == "residual":
        total += buffers["in3"].astype(np.float64).reshape(total.shape)
    elif case.after == "hardswish":
        total = total * np.clip(total + 3, 0, 6) / 6
    elif case.after == "sigmoid":
        total = 1 / (1 + np.exp(-total))
    return total.reshape(-1)


def largest_error(case: DepthwiseCase, *, target: str = "", threads: Sequence[int] = (1,)) -> float:
    """The largest error of the kernel's results, in units of what their roundings allow.

    Each term adds a rounding to f32 of the sum of absolute values. All numbers of threads must give
    the same bits.
    """
    kernel = depthwise_kernel(case)
    buffers = operands_of_case(case)
    expected = expected_result(case, buffers)
    absolute = {name: np.abs(each) for name, each in buffers.items()}
    after = case.after if case.after == "residual" else ""
    bound = expected_result(replace(case, after=after), absolute)
    found = []
    for count in threads:
        buffers["out0"][:] = np.nan
        assert run(kernel, buffers, target=target, threads=count) == 0
        found.append(buffers["out0"].copy())
    assert all(each.tobytes() == found[0].tobytes() for each in found)
    error = np.abs(found[0].astype(np.float64) - expected)
    terms = case.window[0] * case.window[1] + len(_AFTER)
    stored = _HALF_UNITS[case.dtype] * np.abs(expected)
    return float((error / (bound * terms * 2.0**-24 + stored)).max(initial=0))
