"""The state of PyTorch that decides what a graph of Dynamo traces to."""

from __future__ import annotations

import torch

from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.ir.graph_ir import ABI_VERSION

CAPTURE_VERSION = 2
"""Raised by whoever changes what is captured of a graph, or how entries are kept."""

_DEVICES = ("cpu", "cuda")


def trace_state() -> list[str]:
    """The state, as lines.

    Raises:
        NotCoveredError: a mode or a transform of functions is active.
    """
    if torch._C._len_torch_function_stack() or torch._C._functorch.peek_interpreter_stack():
        raise NotCoveredError("a mode of functions")
    if torch._C._len_torch_dispatch_stack():
        raise NotCoveredError("a mode of operators")
    grad = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    autocast = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    return [
        f"capture {CAPTURE_VERSION} of {ABI_VERSION}",
        f"torch {torch.__version__}",
        f"grad {grad}",
        f"autocast {autocast}",
        f"default {torch.get_default_dtype()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"attention {_attention_kernels()}",
        f"libraries {_libraries()}",
    ]


def _attention_kernels() -> tuple[bool, ...]:
    return (
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
    )


def _libraries() -> tuple[object, ...]:
    """Libraries that operators choose between while they are traced."""
    backends = torch.backends
    return (torch._C._has_mkldnn, backends.mkldnn.enabled, backends.cudnn.enabled)
