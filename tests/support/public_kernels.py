"""Kernels of public packages, called in models that a farm compiles; a program of its own.

It runs in a process of its own, because it imports packages from a folder that the test filled, and
because FlagGems asks for a GPU when it is imported. What PyTorch would answer with a GPU is stated
here; PyTorch captures the calls, and the farm compiles the graphs. No kernel runs.

Usage: python -m tests.support.public_kernels FOLDER --endpoint HOST:PORT --target T [--target T]

The last line of the output is JSON: for each kernel and target an error, or an empty text.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP
from tests.support.traced_graphs import recording
from tests.support.triton_without_gpu import as_with_a_gpu

PINNED = ("liger-kernel==0.8.5", "flag-gems==5.0.2", "sqlalchemy==2.0.48", "PyYAML==6.0.3")
"""The packages with the kernels, and what FlagGems needs to be imported."""
_TIMEOUT_S = 600.0
_H100 = SimpleNamespace(
    name="NVIDIA H100", multi_processor_count=132, major=9, minor=0, total_memory=80 << 30
)

Model = Callable[..., Any]


@dataclass(frozen=True)
class PublicKernel:
    """A kernel's name, a model that calls it, and the model's arguments."""

    name: str
    model: Model
    arguments: tuple[torch.Tensor, ...]


def _jit(kernel: Any) -> Any:
    """The function of `triton.jit` below a package's own wrappers."""
    while not isinstance(kernel, triton.runtime.jit.JITFunction):
        kernel = kernel.fn
    return kernel


def _rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _liger_norms() -> Iterator[PublicKernel]:
    from liger_kernel.ops import (  # noqa: PLC0415 -- from the test's folder
        layer_norm,
        rms_norm,
        rope,
    )

    x, w = _rows(64, 4096), _rows(4096)
    statistic = _rows(64, dtype=torch.float32)

    def norm(x: torch.Tensor, w: torch.Tensor) -> Any:
        y, rstd = torch.empty_like(x), x.new_empty(64, dtype=torch.float32)
        rms_norm._rms_norm_forward_kernel[(64,)](
            y, 4096, x, 4096, w, 1, rstd, 1, 4096, 1e-6, 0.0, 0, True, BLOCK_SIZE=4096, num_warps=16
        )
        return y * 2, rstd

    yield PublicKernel("Liger RMSNorm", norm, (x, w))

    def norm_back(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Any:
        dx, dw = torch.empty_like(x), x.new_empty((8, 4096), dtype=torch.float32)
        rms_norm._rms_norm_backward_kernel[(8,)](
            dy, 4096, dx, 4096, x, 4096, triton.language.bfloat16, w, 1, rstd, 1, dw, 4096,
            64, 4096, 0.0, 8, 0, True, BLOCK_SIZE=4096, num_warps=16,
        )  # fmt: skip
        return dx, dw.sum(0)

    yield PublicKernel("Liger RMSNorm, gradient", norm_back, (x, x, w, statistic))

    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        q, k = q * 1, k * 1  # the kernel writes them
        rope._triton_rope[(2 * 128,)](
            q, 4096, k, 1024, cos, 128, sin, 128, 128,
            2, 1, 32, 8, 128, 32, 8, 128, 64, 64, BLOCK_SIZE=32, BACKWARD_PASS=False,
        )  # fmt: skip
        return q, k

    heads = (_rows(2, 128, 32, 128), _rows(2, 128, 8, 128))
    yield PublicKernel("Liger RoPE", rotate, (*heads, _rows(1, 128, 128), _rows(1, 128, 128)))

    def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y, mean = torch.empty_like(x), x.new_empty(64, dtype=torch.float32)
        rstd = torch.empty_like(mean)
        layer_norm._layer_norm_forward_kernel[(64,)](
            y, 4096, x, 4096, w, 1, b, 1, mean, 1, rstd, 1, 4096, 1e-6, BLOCK_SIZE=4096,
            num_warps=16,
        )  # fmt: skip
        return y.relu()

    yield PublicKernel("Liger LayerNorm", normed, (x, w, w))


def _liger_others() -> Iterator[PublicKernel]:
    from liger_kernel.ops import (  # noqa: PLC0415 -- from the test's folder
        cross_entropy,
        geglu,
        kl_div,
        softmax,
        swiglu,
    )

    x = _rows(64, 4096)

    def gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty_like(a)
        swiglu._swiglu_forward_kernel[(64,)](
            a, b, c, 4096, 1.0, n_cols=4096, BLOCK_SIZE=4096, num_warps=8
        )
        return c + 1

    yield PublicKernel("Liger SwiGLU", gated, (x, x))

    def gated_back(dc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        a, b = a * 1, b * 1  # the kernel writes them
        swiglu._swiglu_backward_kernel[(64,)](
            dc, a, b, 4096, 1.0, n_cols=4096, BLOCK_SIZE=4096, num_warps=8
        )
        return a, b

    yield PublicKernel("Liger SwiGLU, gradient", gated_back, (x, x, x))

    def entropy(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        logits, loss = logits * 1, logits.new_empty(64, dtype=torch.float32)
        cross_entropy.liger_cross_entropy_kernel[(64,)](
            X_ptr=logits, X_stride=32000, Y_ptr=labels, Y_stride=1, weight_ptr=None,
            loss_ptr=loss, z_loss_ptr=None, loss_stride=1, token_accuracy_ptr=None,
            token_accuracy_stride=0, predicted_tokens_ptr=None, predicted_tokens_stride=0,
            n_cols=32000, n_non_ignore=64, sum_non_ignore_weight=64.0, weight_sum=0.0,
            ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
            softcap=None, RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False, BLOCK_SIZE=32768, HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False, HAS_GRADIENTS=True, num_warps=32,
        )  # fmt: skip
        return loss.sum(), logits

    labels = torch.zeros(64, dtype=torch.int64)
    yield PublicKernel("Liger cross-entropy", entropy, (_rows(64, 32000), labels))

    def gelu_gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty_like(a)
        geglu._geglu_tanh_forward_kernel[(64,)](
            a, b, c, 4096, n_cols=4096, BLOCK_SIZE=4096, num_warps=8
        )
        return c * 2

    yield PublicKernel("Liger GeGLU", gelu_gated, (x, x))

    def divergence(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = y.new_zeros(64, dtype=torch.float32)
        kl_div._kldiv_kernel_forward[(64,)](
            y, 4096, target, 4096, loss, 1, 4096, 1e-10, BLOCK_SIZE=4096, reduction=1,
            log_target=False, num_warps=16,
        )  # fmt: skip
        return loss.sum()

    floats = _rows(64, 4096, dtype=torch.float32)
    yield PublicKernel("Liger KL divergence", divergence, (floats, floats))

    def shares(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        softmax._softmax_single_block_forward_kernel[(64,)](
            y, 4096, x, 4096, 4096, BLOCK_SIZE=4096, num_warps=16
        )
        return y + 1

    yield PublicKernel("Liger softmax", shares, (x,))


def _flag_gems() -> Iterator[PublicKernel]:
    from flag_gems.fused.flash_mla import (  # noqa: PLC0415 -- from the test's folder
        flash_mla_attn_kernel,
    )
    from flag_gems.fused.fused_add_rms_norm import fused_add_rms_norm_kernel  # noqa: PLC0415
    from flag_gems.ops.rms_norm import rms_norm_kernel  # noqa: PLC0415
    from flag_gems.ops.softmax import softmax_kernel_inner  # noqa: PLC0415

    x, w = _rows(64, 4096), _rows(4096)
    norm_of, added_of, shares_of, decode_of = (
        _jit(kernel)
        for kernel in (
            rms_norm_kernel,
            fused_add_rms_norm_kernel,
            softmax_kernel_inner,
            flash_mla_attn_kernel,
        )
    )

    def norm(x: torch.Tensor, w: torch.Tensor) -> Any:
        y, inverse = torch.empty_like(x), x.new_empty(64, dtype=torch.float32)
        norm_of[(64,)](y, inverse, x, w, 4096, 1, 4096, 1, 4096, 1e-6, BLOCK_SIZE=4096)
        return y * 2, inverse

    yield PublicKernel("FlagGems RMSNorm", norm, (x, w))

    def added(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Any:
        x, residual = x * 1, residual * 1  # the kernel writes them
        added_of[(64,)](x, residual, w, 4096, 1, 4096, 1, 4096, 1e-6, BLOCK_SIZE=4096)
        return x, residual

    yield PublicKernel("FlagGems sum and RMSNorm", added, (x, x, w))

    def shares(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        shares_of[(64, 1, 1)](y, x, 64, 4096, TILE_N=4096, ONE_TILE_PER_CTA=True)
        return y + 1

    yield PublicKernel("FlagGems softmax", shares, (x,))

    def decode(
        q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        out = q.new_empty(4, 128, 512)
        decode_of[(2, 4)](
            q, cache, pages, lengths, out, 576**-0.5, 128, 128 * 576, 576, 576, 16, 128 * 512, 512,
            1, BLOCK_H=64, BLOCK_N=32, EVEN_H=True, PAGE_SIZE=64, HEAD_DIM_V=512, HEAD_DIM=576,
            num_warps=8, num_stages=1,
        )  # fmt: skip
        return out * 2

    tables = (torch.zeros(4, 16, dtype=torch.int32), torch.zeros(4, dtype=torch.int32))
    cache = _rows(64 * 64, 576)
    yield PublicKernel(
        "FlagGems decoding with pages (MLA)", decode, (_rows(4, 128, 576), cache, *tables)
    )


def _as_with_an_h100() -> Any:
    """Answers what FlagGems asks PyTorch about its device."""
    return mock.patch.multiple(
        torch.cuda,
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda *_: _H100.name,
        get_device_properties=lambda *_: _H100,
        get_device_capability=lambda *_: (9, 0),
    )


def _graphs(kernel: PublicKernel) -> list[Graph]:
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    with as_with_a_gpu(), torch.no_grad():
        model = torch.compile(kernel.model, backend=recording(found, runs=False), dynamic=False)
        model(*kernel.arguments)
    return [captured.graph for captured in found]


def _problem(client: FarmClient, graphs: list[Graph], target: str) -> str:
    if sum(node.op == USER_KERNEL_OP for graph in graphs for node in graph.nodes) != 1:
        return "the model's graphs do not have one user kernel"
    for graph in graphs:
        try:
            client.compile(graph, [target])
        except KernelfarmError as error:
            return f"{type(error).__name__}: {error}"[:1500]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--target", action="append", required=True)
    options = parser.parse_args()
    sys.path.insert(0, str(options.folder))
    os.environ["GEMS_VENDOR"] = "nvidia"
    with as_with_a_gpu(), _as_with_an_h100():
        kernels = [*_liger_norms(), *_liger_others(), *_flag_gems()]
    found: dict[str, dict[str, str]] = {}
    with connect(options.endpoint, _TIMEOUT_S) as client:
        for kernel in kernels:
            try:
                graphs = _graphs(kernel)
            except Exception as error:  # one capture that fails is reported with the others
                found[kernel.name] = dict.fromkeys(options.target, f"captured: {error}"[:1500])
                continue
            found[kernel.name] = {
                target: _problem(client, graphs, target) for target in options.target
            }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
