"""Which instructions for matrices a kernel uses, read from its layouts in Triton's GPU dialect."""

from __future__ import annotations

import re

_NVIDIA = re.compile(r"#ttg\.nvidia_mma<\{versionMajor = (\d+)[^>]*instrShape = \[([\d, ]+)\]")
_MFMA = re.compile(r"#ttg\.amd_mfma<\{[^>]*instrShape = \[([\d, ]+)\]")
_WMMA = re.compile(r"#ttg\.amd_wmma<\{(?:[^>]*instrShape = \[([\d, ]+)\])?")
_TENSOR_MEMORY = "ttng.tc_gen5_mma"
_WARP_GROUP = "3"
"""The version of the layouts of `wgmma`, which state a warp's 16 of the four warps' 64 rows."""
_USUAL_WMMA = "16, 16, 16"
"""The shape that a layout of WMMA has if it states none."""


def matrix_use(ttgir: str) -> tuple[str, ...]:
    """The families of instructions, and their shapes where layouts state them: `mfma 32x32x8`."""
    found = [_nvidia(major, shape) for major, shape in _NVIDIA.findall(ttgir)]
    found += [f"mfma {_sides(shape)}" for shape in _MFMA.findall(ttgir)]
    found += [f"wmma {_sides(shape or _USUAL_WMMA)}" for shape in _WMMA.findall(ttgir)]
    if _TENSOR_MEMORY in ttgir:
        found.append("tcgen05")
    return tuple(dict.fromkeys(found))


def _nvidia(version: str, shape: str) -> str:
    if version != _WARP_GROUP:
        return f"mma {_sides(shape)}"
    _, *others = _sides(shape).split("x")
    return "x".join(("wgmma 64", *others))


def _sides(shape: str) -> str:
    return "x".join(side.strip() for side in shape.split(","))
