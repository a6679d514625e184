"""Kernels for the subjects of Triton's tutorials, in the ways in which users write them."""

# Triton's kernels have many parameters, constants in capitals, and no types.
# ruff: noqa: N803, PLR0917, PLW2901
# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernelfarm.client.triton.kernel_source import kernel_source
from kernelfarm.client.triton.signatures import user_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def add_vectors(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def softmax_rows(
    out_ptr, in_ptr, in_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    first, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(first, rows, step, num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        mask = at < columns
        values = tl.load(in_ptr + row * in_stride + at, mask=mask, other=-float("inf"))
        values = tl.exp(values - tl.max(values, axis=0))
        tl.store(out_ptr + row * out_stride + at, values / tl.sum(values, axis=0), mask=mask)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def program_of_tile(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """The tile of a program, so that neighbours share operands in the cache."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    size = min(tiles_m - first, GROUP)
    return first + tile % in_group % size, tile % in_group // size


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BN": 256, "BK": 64, "GROUP": 8}, num_stages=3, num_warps=8),
        triton.Config({"BM": 64, "BN": 64, "BK": 32, "GROUP": 8}, num_stages=4, num_warps=4),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = program_of_tile(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    tl.assume(stride_am > 0)
    rows = (tile_m * BM + tl.arange(0, BM)) % m
    columns = (tile_n * BN + tl.arange(0, BN)) % n
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + inner[None, :] * stride_ak)
    b_ptrs = b_ptr + (inner[:, None] * stride_bk + columns[None, :] * stride_bn)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        a = tl.load(a_ptrs, mask=inner[None, :] < k - step * BK, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < k - step * BK, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    rows = tile_m * BM + tl.arange(0, BM)
    columns = tile_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(c_ptrs, total.to(tl.float16), mask=(rows[:, None] < m) & (columns[None, :] < n))


_TUNED = [
    triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_stages=stages, num_warps=warps)
    for m, n, k, stages, warps in (
        (256, 128, 128, 4, 8),  # more shared memory than any chip has
        (128, 128, 64, 3, 8),
        (64, 128, 32, 4, 4),
        (32, 64, 32, 4, 4),
    )
]
tuned_matmul = triton.autotune(configs=_TUNED, key=["m", "n", "k"])(matmul.fn)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 2**n}, num_warps=4) for n in (8, 9, 10)],
    key=["n"],
    restore_value=["total_ptr"],
)
@triton.jit
def add_to(total_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(total_ptr + at, mask=at < n) + tl.load(x_ptr + at, mask=at < n)
    tl.store(total_ptr + at, total, mask=at < n)


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    is_kept = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(is_kept, x / (1 - p), 0.0), mask=mask)


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    y_ptr += row * stride
    x_ptr += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        at = off + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        at = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        x = tl.where(at < n, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for off in range(0, n, BLOCK):
        at = off + tl.arange(0, BLOCK)
        mask = at < n
        w = tl.load(w_ptr + at, mask=mask)
        b = tl.load(b_ptr + at, mask=mask)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def attention_of_blocks(
    acc, l_i, m_i, q, k_ptr, v_ptr, stride_k, stride_v, start_m, scale, n,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    inner = tl.arange(0, D)
    rows = start_m * BM + tl.arange(0, BM)
    last = (start_m + 1) * BM if IS_CAUSAL else n
    for start in tl.range(0, last, BN):
        start = tl.multiple_of(start, BN)
        at = start + tl.arange(0, BN)
        k = tl.load(
            k_ptr + at[None, :] * stride_k + inner[:, None], mask=at[None, :] < n, other=0.0
        )
        scores = tl.dot(q, k) * (scale * LOG2E)
        if IS_CAUSAL:
            scores = tl.where(rows[:, None] >= at[None, :], scores, -1.0e6)
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.math.exp2(scores - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(
            v_ptr + at[:, None] * stride_v + inner[None, :], mask=at[:, None] < n, other=0.0
        )
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, stride_h, stride_n, n, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, IS_CAUSAL: tl.constexpr = True,
):  # fmt: skip
    tl.static_assert(BN <= D)
    start_m, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * stride_h
    rows = start_m * BM + tl.arange(0, BM)
    inner = tl.arange(0, D)
    at = base + rows[:, None] * stride_n + inner[None, :]
    q = tl.load(q_ptr + at, mask=rows[:, None] < n, other=0.0)
    m_i = tl.full([BM], -float("inf"), dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32) + 1.0
    acc = tl.zeros([BM, D], dtype=tl.float32)
    acc, l_i, m_i = attention_of_blocks(
        acc, l_i, m_i, q, k_ptr + base, v_ptr + base, stride_n, stride_n, start_m, scale, n,
        BM, BN, D, IS_CAUSAL,
    )  # fmt: skip
    tl.store(lse_ptr + head * n + rows, m_i + tl.math.log2(l_i), mask=rows < n)
    tl.store(
        out_ptr + at, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), mask=rows[:, None] < n
    )


@triton.jit
def grouped_matmul(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, strides_ptr, groups,
    PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile, end = tl.program_id(0), 0
    for group in range(groups):
        m = tl.load(sizes_ptr + group * 3)
        n = tl.load(sizes_ptr + group * 3 + 1)
        k = tl.load(sizes_ptr + group * 3 + 2)
        tiles_n = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * tiles_n
        while tile >= end and tile < end + tiles:
            lda = tl.load(strides_ptr + group * 3)
            ldb = tl.load(strides_ptr + group * 3 + 1)
            ldc = tl.load(strides_ptr + group * 3 + 2)
            a_ptr = tl.load(a_ptrs + group).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + group).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + group).to(tl.pointer_type(tl.float16))
            rows = (tile - end) // tiles_n * BM + tl.arange(0, BM)
            columns = (tile - end) % tiles_n * BN + tl.arange(0, BN)
            inner = tl.arange(0, BK)
            a = a_ptr + rows[:, None] * lda + inner[None, :]
            b = b_ptr + inner[:, None] * ldb + columns[None, :]
            total = tl.zeros((BM, BN), dtype=tl.float32)
            for _step in range(0, tl.cdiv(k, BK)):
                tl.multiple_of(a, [16, 16])
                total += tl.dot(tl.load(a), tl.load(b))
                a += BK
                b += BK * ldb
            tl.store(c_ptr + rows[:, None] * ldc + columns[None, :], total.to(tl.float16))
            tile += PROGRAMS
        end += tiles


@triton.jit
def persistent_matmul(
    a_ptr, b_ptr, c_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=False):
        tile_m, tile_n = program_of_tile(tile, tiles_m, tiles_n, GROUP)
        rows = tl.max_contiguous(tl.multiple_of(tile_m * BM + tl.arange(0, BM), BM), BM)
        columns = tl.max_contiguous(tl.multiple_of(tile_n * BN + tl.arange(0, BN), BN), BN)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(tl.cdiv(k, BK)):
            inner = step * BK + tl.arange(0, BK)
            is_row, is_column = rows[:, None] < m, columns[None, :] < n
            a = tl.load(
                a_ptr + rows[:, None] * k + inner[None, :],
                mask=is_row & (inner[None, :] < k),
                other=0.0,
            )
            b = tl.load(
                b_ptr + inner[:, None] * n + columns[None, :],
                mask=(inner[:, None] < k) & is_column,
                other=0.0,
            )
            total = tl.dot(a, b, total)
        mask = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(c_ptr + rows[:, None] * n + columns[None, :], total.to(tl.float16), mask=mask)


@triton.jit
def arc_sines(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, libdevice.asin(x), mask=offsets < n)


@triton.jit
def described_matmul(
    a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        a = a_desc.load([row, step * BK])
        b = b_desc.load([column, step * BK])
        total = tl.dot(a, b.T, total)
    c_desc.store([row, column], total.to(tl.float16))


@dataclass(frozen=True, slots=True)
class Tutorial:
    """A kernel with the signature, constants and options that a user would state."""

    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)

    def kernel(self) -> UserKernel:
        """The kernel as it travels."""
        source = kernel_source(self.function)
        return user_kernel(source, self.signature, self.constants, self.options)


def _types(text: str, **kinds: str) -> dict[str, str]:
    """Types by parameter: `kinds` maps a type's short name to the type."""
    pairs = (entry.split(":") for entry in text.split())
    return {name: kinds[kind] for names, kind in pairs for name in names.split(",")}


_HALF = {"h": "*fp16", "i": "i32"}
_FLOAT = {"p": "*fp32", "i": "i32", "f": "fp32", "d": "i32:16"}
_MATMUL = _types("a_ptr,b_ptr,c_ptr:h m,n,k:i", **_HALF)
_STRIDES = _types("stride_am,stride_bk,stride_cm:d", **_FLOAT)
MATMUL_SIGNATURE = {**_MATMUL, **_STRIDES}
"""The types of `matmul` and `tuned_matmul` for operands whose last stride is 1."""
_ONES = {"stride_ak": 1, "stride_bn": 1, "stride_cn": 1}
_BLOCKS = {"BM": 64, "BN": 64, "BK": 32}

TUTORIALS: Mapping[str, Tutorial] = {
    "add": Tutorial(add_vectors, _types("x_ptr,y_ptr,out_ptr:p n:i", **_FLOAT), {"BLOCK": 1024}),
    "softmax": Tutorial(
        softmax_rows,
        _types("out_ptr,in_ptr:p in_stride,out_stride:d rows,columns:i", **_FLOAT),
        {"BLOCK": 1024, "STAGES": 2},
        {"num_warps": 8},
    ),
    "matmul": Tutorial(
        matmul,
        MATMUL_SIGNATURE,
        {**_ONES, "BM": 128, "BN": 128, "BK": 32, "GROUP": 8, "ACTIVATION": "leaky_relu"},
        {"num_warps": 8, "num_stages": 3},
    ),
    "dropout": Tutorial(dropout, _types("x_ptr,out_ptr:p n,seed:i p:f", **_FLOAT), {"BLOCK": 1024}),
    "layer norm": Tutorial(
        layer_norm,
        _types("x_ptr,y_ptr,w_ptr,b_ptr,mean_ptr,rstd_ptr:p stride:d n:i eps:f", **_FLOAT),
        {"BLOCK": 1024},
    ),
    "attention": Tutorial(
        attention,
        {
            **_types("q_ptr,k_ptr,v_ptr,out_ptr:h n:i", **_HALF),
            **_types("lse_ptr:p stride_h,stride_n:d scale:f", **_FLOAT),
        },
        {"BM": 64, "BN": 32, "D": 64},
    ),
    "grouped matmul": Tutorial(
        grouped_matmul,
        {
            **dict.fromkeys(("a_ptrs", "b_ptrs", "c_ptrs"), "*i64"),
            **dict.fromkeys(("sizes_ptr", "strides_ptr"), "*i32"),
            "groups": "i32",
        },
        {**_BLOCKS, "PROGRAMS": 84},
    ),
    "persistent matmul": Tutorial(
        persistent_matmul, _MATMUL, {**_BLOCKS, "GROUP": 8, "PROGRAMS": 132}
    ),
    "library functions": Tutorial(
        arc_sines, _types("x_ptr,out_ptr:p n:i", **_FLOAT), {"BLOCK": 256}
    ),
    "tensor descriptors": Tutorial(described_matmul, _MATMUL, {**_BLOCKS, "BK": 64}),
}
