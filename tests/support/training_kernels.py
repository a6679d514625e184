"""Operators of training as public libraries of Triton kernels write them, with gradients.

They use what such kernels have: constants of a module wrapped in `tl.constexpr`, functions of
`libdevice` by name, helpers, docstrings, pointers that are None, text as a constant, early returns,
and results that are stored in the memory of an operand.
"""

# Triton's kernels have many parameters, constants in capitals, and no types.
# ruff: noqa: N803, PLR0917
# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return,misc"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

_CAST_ALL: tl.constexpr = tl.constexpr(0)
_CAST_NONE: tl.constexpr = tl.constexpr(-1)
_PROGRAMS = 132


@triton.jit
def _rms_forward(
    y_ptr, y_stride, x_ptr, x_stride, w_ptr, rstd_ptr, n_cols, eps, offset,
    MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """
    y = x / rms(x) * (offset + w)
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < n_cols
    x = tl.load(x_ptr + row * x_stride + at, mask=mask, other=0)
    dtype = x.dtype
    if MODE == _CAST_ALL:
        x = x.to(tl.float32)
    if MODE == _CAST_NONE:
        eps = eps.to(dtype)
        offset = offset.to(dtype)
    rstd = rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    tl.store(rstd_ptr + row, rstd)
    x = x * rstd
    if HAS_WEIGHT:
        x = x * (offset + tl.load(w_ptr + at, mask=mask, other=0))
    tl.store(y_ptr + row * y_stride + at, x.to(dtype), mask=mask)


@triton.jit
def _rms_backward(
    dy_ptr, dx_ptr, x_ptr, w_ptr, rstd_ptr, dw_ptr, stride, n_rows, n_cols, rows_of_program,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    first = program * rows_of_program
    last = min((program + 1) * rows_of_program, n_rows)
    at = tl.arange(0, BLOCK)
    mask = at < n_cols
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    w = tl.load(w_ptr + at, mask=mask, other=0.0)
    for row in range(first, last):
        dy = tl.load(dy_ptr + row * stride + at, mask=mask, other=0.0)
        x = tl.load(x_ptr + row * stride + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        m = (dy * w).to(tl.float32)
        dx = rstd * m
        dx += rstd * (-(1 / n_cols) * rstd * rstd * tl.sum(m * x, axis=0) * x)
        dw += dy * (x * rstd)
        tl.store(dx_ptr + row * stride + at, dx, mask=mask)
    tl.store(dw_ptr + program * stride + at, dw, mask=mask)


class RmsNorm(torch.autograd.Function):
    """RMSNorm of rows with a weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        y, rstd = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(n)
        _rms_forward[(rows,)](
            y, y.stride(0), x, x.stride(0), w, rstd, n, 1e-6, 0.0,
            MODE=_CAST_ALL.value, HAS_WEIGHT=True, BLOCK=block, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x, w, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w, rstd = ctx.saved_tensors
        rows, n = x.shape
        dy = dy.contiguous()
        dx, dw = torch.empty_like(x), torch.empty(_PROGRAMS, n, device=x.device)
        _rms_backward[(_PROGRAMS,)](
            dy, dx, x, w, rstd, dw, x.stride(0), rows, n, triton.cdiv(rows, _PROGRAMS),
            BLOCK=triton.next_power_of_2(n), num_warps=8,
        )  # fmt: skip
        return dx, dw.sum(0).to(w.dtype)


@triton.jit
def _rope(
    q_ptr, q_stride, k_ptr, k_stride, cos, sin, n: tl.constexpr, QH: tl.constexpr, KH: tl.constexpr,
    D: tl.constexpr, BACKWARD: tl.constexpr = False,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    q_ptr = q_ptr + row * q_stride
    k_ptr = k_ptr + row * k_stride
    half = tl.arange(0, D // 2)
    c = tl.load(cos + (row % n) * D + half)
    s = tl.load(sin + (row % n) * D + half)
    for head in tl.static_range(QH + KH):
        at = (q_ptr + head * D) if head < QH else (k_ptr + (head - QH) * D)
        left, right = tl.load(at + half), tl.load(at + half + D // 2)
        if not BACKWARD:
            tl.store(at + half, left * c - right * s)
            tl.store(at + half + D // 2, right * c + left * s)
        else:
            tl.store(at + half, left * c + right * s)
            tl.store(at + half + D // 2, right * c - left * s)


class Rope(torch.autograd.Function):
    """Rotates queries and keys of (rows, heads, depth), stored where they were."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = q.contiguous(), k.contiguous()
        q, k = q.clone(), k.clone()
        _rotate(q, k, cos, sin, is_backward=False)
        ctx.save_for_backward(cos, sin)
        return q, k

    @staticmethod
    def backward(
        ctx: Any, dq: torch.Tensor, dk: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        dq, dk = dq.clone(), dk.clone()
        _rotate(dq, dk, *ctx.saved_tensors, is_backward=True)
        return dq, dk, None, None


def _rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, is_backward: bool
) -> None:
    (rows, q_heads, depth), k_heads = q.shape, k.shape[1]
    _rope[(rows,)](
        q, q.stride(0), k, k.stride(0), cos, sin, cos.shape[0], q_heads, k_heads, depth,
        BACKWARD=is_backward,
    )  # fmt: skip


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def _swiglu(a_ptr, b_ptr, c_ptr, stride, n: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    a_ptr += row * stride
    b_ptr += row * stride
    c_ptr += row * stride
    at = tl.arange(0, BLOCK)
    mask = at < n
    a = tl.load(a_ptr + at, mask=mask, other=0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=mask, other=0)
    tl.store(c_ptr + at, silu(a).cast(b.dtype) * b, mask=mask)


@triton.jit
def _swiglu_backward(dc_ptr, a_ptr, b_ptr, stride, n: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = row * stride + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < n
    dc = tl.load(dc_ptr + at, mask=mask, other=0)
    a = tl.load(a_ptr + at, mask=mask, other=0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=mask, other=0)
    sig = tl.sigmoid(a)
    s = a * sig
    tl.store(a_ptr + at, dc * (s * (1 - sig) + sig) * b, mask=mask)
    tl.store(b_ptr + at, dc * s, mask=mask)


class SwiGlu(torch.autograd.Function):
    """silu(a) * b; gradients are stored in the memory of copies of the operands."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows, n = a.shape
        c = torch.empty_like(a)
        _swiglu[(rows,)](a, b, c, c.stride(-2), n=n, BLOCK=triton.next_power_of_2(n), num_warps=8)
        ctx.save_for_backward(a, b)
        return c

    @staticmethod
    def backward(ctx: Any, dc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (saved.clone() for saved in ctx.saved_tensors)
        rows, n = a.shape
        _swiglu_backward[(rows,)](
            dc.contiguous(), a, b, a.stride(-2), n=n, BLOCK=triton.next_power_of_2(n)
        )
        return a, b


@triton.jit
def _cross_entropy(
    x_ptr, x_stride, y_ptr, weight_ptr, loss_ptr, n_cols, n_counted, ignored,
    smoothing: tl.constexpr, reduction: tl.constexpr, BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """
    The loss of a row; the gradient replaces the row.
    """
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(y_ptr + row)
    x_ptr += row * x_stride
    if y == ignored:
        for i in range(0, n_cols, BLOCK):
            at = i + tl.arange(0, BLOCK)
            tl.store(x_ptr + at, 0.0, mask=at < n_cols)
        return
    m = float("-inf")
    d = 0.0
    ori = tl.load(x_ptr + y).cast(tl.float32)
    scaled_sum = 0.0
    for i in range(0, n_cols, BLOCK):
        at = i + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n_cols, other=float("-inf")).cast(tl.float32)
        if smoothing > 0:
            scaled_sum += tl.sum(tl.where(at < n_cols, -smoothing / n_cols * x, 0.0))
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    lse = m + tl.log(d)
    for i in range(0, n_cols, BLOCK):
        at = i + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n_cols, other=float("-inf")).cast(tl.float32)
        x = tl.exp(x - lse) - smoothing / n_cols
        x = tl.where(at != y, x, x - (1 - smoothing))
        if reduction == "mean":
            x = x / n_counted
        tl.store(x_ptr + at, x, mask=at < n_cols)
    tl.debug_barrier()
    loss = (lse - ori) * (1 - smoothing) + scaled_sum + smoothing * lse
    if HAS_WEIGHT:
        loss = loss * tl.load(weight_ptr + y).cast(tl.float32)
    if reduction == "mean":
        loss = loss / n_counted
    tl.store(loss_ptr + row, loss)


class CrossEntropy(torch.autograd.Function):
    """The mean loss of rows of logits; the forward pass computes the gradient, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        gradient, loss = x.clone(), torch.zeros(rows, device=x.device)
        _cross_entropy[(rows,)](
            x_ptr=gradient, x_stride=gradient.stride(-2), y_ptr=y, weight_ptr=None, loss_ptr=loss,
            n_cols=n, n_counted=rows, ignored=-100, smoothing=0.1, reduction="mean",
            BLOCK=min(1024, triton.next_power_of_2(n)), HAS_WEIGHT=False, num_warps=16,
        )  # fmt: skip
        ctx.save_for_backward(gradient)
        return loss.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None
