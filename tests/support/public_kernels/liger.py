"""Kernels of Liger. Import this module where Liger can be imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
from liger_kernel.ops import (
    cross_entropy,
    geglu,
    kl_div,
    layer_norm,
    rms_norm,
    rope,
    softmax,
    swiglu,
)
from torch.nn import functional

from tests.support.public_kernels.kernel import (
    EPSILON,
    ROWS,
    WIDTH,
    PublicKernel,
    Tensors,
    inverse_rms,
    numbers,
    rms_normalized,
)

_CLASSES = 32000
_IGNORED = -100


def liger_kernels() -> Iterator[PublicKernel]:
    """Ten kernels."""
    yield from _norms()
    yield from _gates()
    yield from _losses()
    yield PublicKernel("Liger RoPE", _rotate, _rotated(), _exact_rotation)
    yield PublicKernel(
        "Liger softmax", _shares, (numbers(ROWS, WIDTH),), lambda x: (x.softmax(-1) + 1,)
    )


def _norms() -> Iterator[PublicKernel]:
    x, w, b = numbers(ROWS, WIDTH), numbers(WIDTH), numbers(WIDTH, seed=1)

    def norm(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        y, rstd = torch.empty_like(x), x.new_empty(ROWS, dtype=torch.float32)
        rms_norm._rms_norm_forward_kernel[(ROWS,)](
            y, WIDTH, x, WIDTH, w, 1, rstd, 1, WIDTH, EPSILON, 0.0, 0, True, BLOCK_SIZE=WIDTH,
            num_warps=16,
        )  # fmt: skip
        return y * 2, rstd

    yield PublicKernel(
        "Liger RMSNorm", norm, (x, w), lambda x, w: (rms_normalized(x, w) * 2, inverse_rms(x))
    )

    def norm_back(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Any:
        dx, dw = torch.empty_like(x), x.new_empty((8, WIDTH), dtype=torch.float32)
        rms_norm._rms_norm_backward_kernel[(8,)](
            dy, WIDTH, dx, WIDTH, x, WIDTH, triton.language.bfloat16, w, 1, rstd, 1, dw, WIDTH,
            ROWS, WIDTH, 0.0, 8, 0, True, BLOCK_SIZE=WIDTH, num_warps=16,
        )  # fmt: skip
        return dx, dw.sum(0)

    def exact_back(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> Tensors:
        return _gradients(rms_normalized, dy, x, w)

    statistic = inverse_rms(x).float()
    given = (numbers(ROWS, WIDTH, seed=2), x, w, statistic)
    yield PublicKernel("Liger RMSNorm, gradient", norm_back, given, exact_back)

    def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y, mean = torch.empty_like(x), x.new_empty(ROWS, dtype=torch.float32)
        rstd = torch.empty_like(mean)
        layer_norm._layer_norm_forward_kernel[(ROWS,)](
            y, WIDTH, x, WIDTH, w, 1, b, 1, mean, 1, rstd, 1, WIDTH, EPSILON, BLOCK_SIZE=WIDTH,
            num_warps=16,
        )  # fmt: skip
        return y.relu()

    yield PublicKernel(
        "Liger LayerNorm",
        normed,
        (x, w, b),
        lambda x, w, b: (functional.layer_norm(x, (WIDTH,), w, b, EPSILON).relu(),),
    )


def _gates() -> Iterator[PublicKernel]:
    a, b = numbers(ROWS, WIDTH), numbers(ROWS, WIDTH, seed=1)

    def gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty_like(a)
        swiglu._swiglu_forward_kernel[(ROWS,)](
            a, b, c, WIDTH, 1.0, n_cols=WIDTH, BLOCK_SIZE=WIDTH, num_warps=8
        )
        return c + 1

    yield PublicKernel("Liger SwiGLU", gated, (a, b), lambda a, b: (functional.silu(a) * b + 1,))

    def gated_back(dc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Tensors:
        a, b = a * 1, b * 1  # the kernel writes them
        swiglu._swiglu_backward_kernel[(ROWS,)](
            dc, a, b, WIDTH, 1.0, n_cols=WIDTH, BLOCK_SIZE=WIDTH, num_warps=8
        )
        return a, b

    def exact_back(dc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Tensors:
        return _gradients(lambda a, b: functional.silu(a) * b, dc, a, b)

    given = (numbers(ROWS, WIDTH, seed=2), a, b)
    yield PublicKernel("Liger SwiGLU, gradient", gated_back, given, exact_back)

    def gelu_gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty_like(a)
        geglu._geglu_tanh_forward_kernel[(ROWS,)](
            a, b, c, WIDTH, n_cols=WIDTH, BLOCK_SIZE=WIDTH, num_warps=8
        )
        return c * 2

    yield PublicKernel(
        "Liger GeGLU",
        gelu_gated,
        (a, b),
        lambda a, b: (functional.gelu(a, approximate="tanh") * b * 2,),
    )


def _losses() -> Iterator[PublicKernel]:
    def entropy(logits: torch.Tensor, labels: torch.Tensor) -> Tensors:
        logits, loss = logits * 1, logits.new_empty(ROWS, dtype=torch.float32)
        cross_entropy.liger_cross_entropy_kernel[(ROWS,)](
            X_ptr=logits, X_stride=_CLASSES, Y_ptr=labels, Y_stride=1, weight_ptr=None,
            loss_ptr=loss, z_loss_ptr=None, loss_stride=1, token_accuracy_ptr=None,
            token_accuracy_stride=0, predicted_tokens_ptr=None, predicted_tokens_stride=0,
            n_cols=_CLASSES, n_non_ignore=ROWS, sum_non_ignore_weight=float(ROWS), weight_sum=0.0,
            ignore_index=_IGNORED, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
            softcap=None, RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False, BLOCK_SIZE=32768, HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False, HAS_GRADIENTS=True, num_warps=32,
        )  # fmt: skip
        return loss.sum(), logits

    def exact_entropy(logits: torch.Tensor, labels: torch.Tensor) -> Tensors:
        logits = logits.detach().requires_grad_()
        with torch.enable_grad():
            loss = functional.cross_entropy(logits, labels)
        return loss.detach(), *torch.autograd.grad(loss, logits)

    labels = torch.randint(0, _CLASSES, (ROWS,), generator=torch.Generator().manual_seed(3))
    given = (numbers(ROWS, _CLASSES), labels)
    yield PublicKernel("Liger cross-entropy", entropy, given, exact_entropy)

    def divergence(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = y.new_zeros(ROWS, dtype=torch.float32)
        kl_div._kldiv_kernel_forward[(ROWS,)](
            y, WIDTH, target, WIDTH, loss, 1, WIDTH, 1e-10, BLOCK_SIZE=WIDTH, reduction=1,
            log_target=False, num_warps=16,
        )  # fmt: skip
        return loss.sum()

    first, second = (numbers(ROWS, WIDTH, seed=seed, dtype=torch.float32) for seed in range(2))
    yield PublicKernel(
        "Liger KL divergence",
        divergence,
        (first.log_softmax(-1), second.softmax(-1)),
        lambda y, target: (functional.kl_div(y, target, reduction="sum"),),
        tolerance=1e-5,
    )


def _shares(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    softmax._softmax_single_block_forward_kernel[(ROWS,)](
        y, WIDTH, x, WIDTH, WIDTH, BLOCK_SIZE=WIDTH, num_warps=16
    )
    return y + 1


_BATCH, _TOKENS, _HEADS, _KEY_HEADS, _DEPTH = 2, 128, 32, 8, 128


def _rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    q, k = q * 1, k * 1  # the kernel writes them
    rope._triton_rope[(_BATCH * _TOKENS,)](
        q, _HEADS * _DEPTH, k, _KEY_HEADS * _DEPTH, cos, _DEPTH, sin, _DEPTH, _TOKENS,
        _BATCH, 1, _HEADS, _KEY_HEADS, _DEPTH, _HEADS, _KEY_HEADS, _DEPTH, _DEPTH, _DEPTH,
        BLOCK_SIZE=_HEADS, BACKWARD_PASS=False,
    )  # fmt: skip
    return q, k


def _rotated() -> Tensors:
    """Queries, keys, cosines and sines; the angles of the second half repeat those of the first."""
    q = numbers(_BATCH, _TOKENS, _HEADS, _DEPTH)
    k = numbers(_BATCH, _TOKENS, _KEY_HEADS, _DEPTH, seed=1)
    angles = torch.arange(_TOKENS)[:, None] * 10000.0 ** (-torch.arange(_DEPTH // 2) / 64)
    angles = torch.cat((angles, angles), -1)[None]
    return q, k, angles.cos().bfloat16(), angles.sin().bfloat16()


def _exact_rotation(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Tensors:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[:, :, None] + torch.cat((-second, first), -1) * sin[:, :, None]

    return rotated(q), rotated(k)


def _gradients(function: Any, given: torch.Tensor, *arguments: torch.Tensor) -> Tensors:
    """The gradients of a function's arguments for the gradient `given` of its result."""
    leaves = [argument.detach().requires_grad_() for argument in arguments]
    with torch.enable_grad():
        result = function(*leaves)
    return torch.autograd.grad(result, leaves, given)
