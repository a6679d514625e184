"""Decomposes operators that torch fuses on some devices only, so that all devices trace the same.

For a recurrent cell or an RMSNorm, torch calls a fused kernel on a GPU and single operators on a
CPU, so one model would need one program for each kind of device. Before AOT Autograd runs, this
module replaces Dynamo's calls by the operators that torch uses on a CPU; the farm fuses them.
Training layer norms of half types are replaced too, so that they save the same statistics on all
devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.custom_operators.layer_norm import NORM_SAVING

_COMPUTED_IN = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}

_HALF = frozenset({torch.float16, torch.bfloat16})

Optional = Tensor | None


def decompose_fused(module: fx.GraphModule) -> None:
    """Replaces the fused operators of a Dynamo graph, in place."""
    changed = False
    for fused, written in _DECOMPOSITIONS.items():
        for node in module.graph.find_nodes(op="call_function", target=fused):
            node.target = written
            changed = True
    if changed:
        module.recompile()


def _lstm_cell(
    given: Tensor,
    state: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Optional = None,
    b_hh: Optional = None,
) -> tuple[Tensor, Tensor]:
    hidden, cell = state
    gates = F.linear(hidden, w_hh, b_hh) + F.linear(given, w_ih, b_ih)
    i, f, g, o = gates.unsafe_chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * cell + i * g
    return o * cell.tanh(), cell


def _gru_cell(
    given: Tensor,
    hidden: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Optional = None,
    b_hh: Optional = None,
) -> Tensor:
    reset_i, update_i, new_i = F.linear(given, w_ih, b_ih).unsafe_chunk(3, 1)
    reset_h, update_h, new_h = F.linear(hidden, w_hh, b_hh).unsafe_chunk(3, 1)
    reset = (reset_h + reset_i).sigmoid()
    update = (update_h + update_i).sigmoid()
    new = (new_i + new_h * reset).tanh()
    return (hidden - new) * update + new


def _rms_norm(
    given: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional = None,
    eps: float | None = None,
) -> Tensor:
    dtype = _COMPUTED_IN.get(given.dtype)
    if dtype is None or torch.is_autocast_enabled(given.device.type):
        return torch.rms_norm(given, normalized_shape, weight, eps)
    eps = torch.finfo(dtype).eps if eps is None else eps
    if dtype is torch.float32:
        eps = float(np.float32(eps))
    wide = given.to(dtype)
    axes = [given.dim() - 1 - position for position in range(len(normalized_shape))]
    mean = wide.pow(2).mean(axes, keepdim=True)
    result: Tensor = wide * torch.ops.aten.add.Scalar(mean, eps).rsqrt()
    result = result if weight is None else result * weight
    return result.to(given.dtype)


def _layer_norm(
    given: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional = None,
    bias: Optional = None,
    eps: float = 1e-5,
) -> Tensor:
    tensors = [tensor for tensor in (given, weight, bias) if tensor is not None]
    needs_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    is_half = all(tensor.dtype in _HALF for tensor in tensors)
    if not needs_gradients or not is_half or torch.is_autocast_enabled(given.device.type):
        return F.layer_norm(given, normalized_shape, weight, bias, eps)
    result: Tensor = NORM_SAVING(given, normalized_shape, weight, bias, eps)[0]
    return result


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rms_norm: _rms_norm,
    F.layer_norm: _layer_norm,
}
