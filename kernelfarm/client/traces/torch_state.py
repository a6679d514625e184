"""The state of PyTorch that tracing a Dynamo graph depends on."""

from __future__ import annotations

import torch

from kernelfarm.client.pytorch.deterministic import is_determinism_wanted
from kernelfarm.client.pytorch.private import (
    _get_cudnn_sdp_enabled,
    _get_flash_sdp_enabled,
    _get_math_sdp_enabled,
    _get_mem_efficient_sdp_enabled,
    _has_mkldnn,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    peek_interpreter_stack,
)
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.ir.graph_ir import ABI_VERSION

CAPTURE_VERSION = 2
"""Increase it after a change of capture or of the format of entries."""

_DEVICES = ("cpu", "cuda")


def trace_state() -> list[str]:
    """The state as lines, each with a name and a value.

    Raises:
        NotCoveredError: a torch function mode, a dispatch mode or a functorch transform is active.
    """
    if _len_torch_function_stack() or peek_interpreter_stack():
        raise NotCoveredError("a function mode or transform")
    if _len_torch_dispatch_stack():
        raise NotCoveredError("a dispatch mode")
    grad = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    autocast = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    return [
        f"capture {CAPTURE_VERSION} of {ABI_VERSION}",
        f"torch {torch.__version__}",
        f"grad {grad}",
        f"autocast {autocast}",
        f"default {torch.get_default_dtype()}",
        f"deterministic {is_determinism_wanted()}",
        f"attention {_attention_kernels()}",
        f"libraries {_libraries()}",
    ]


def _attention_kernels() -> tuple[bool, ...]:
    return (
        _get_flash_sdp_enabled(),
        _get_mem_efficient_sdp_enabled(),
        _get_math_sdp_enabled(),
        _get_cudnn_sdp_enabled(),
    )


def _libraries() -> tuple[object, ...]:
    """Settings of libraries by which operators choose their decomposition while tracing."""
    backends = torch.backends
    return (_has_mkldnn, backends.mkldnn.enabled, backends.cudnn.enabled)
