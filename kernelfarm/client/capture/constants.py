"""Tensors that a traced module holds: small ones become constants of the graph."""

from __future__ import annotations

import hashlib

import torch

from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Constant, TensorType, contiguous_strides

LARGEST_CONSTANT_BYTES = 64 * 1024
"""Larger tensors are inputs of the graph and are passed at each call."""


def is_sent_as_constant(tensor: torch.Tensor) -> bool:
    """True for a small dense tensor whose content can be read."""
    small = tensor.numel() * tensor.element_size() <= LARGEST_CONSTANT_BYTES
    return small and tensor.layout is torch.strided and not _is_fake(tensor)


def constant_of(tensor: torch.Tensor) -> Constant:
    """The tensor as a constant: contiguous little-endian elements and their SHA-256."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    shape = tuple(as_expr(extent) for extent in tensor.shape)
    kind = TensorType(dtype_from_torch(tensor.dtype), shape, contiguous_strides(shape))
    return Constant(kind, hashlib.sha256(data).digest(), data)


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter
