"""The names of operators in a captured graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelfarm.client.custom_operators.attention import (
    ATTENTION,
    ATTENTION_BACKWARD,
    ATTENTION_SAVING,
)
from kernelfarm.client.custom_operators.layer_norm import NORM_BACKWARD, NORM_SAVING
from kernelfarm.client.custom_operators.tile_program import TILE_PROGRAM
from kernelfarm.client.pytorch.private import HigherOrderOperator, OpOverload

_WIRE_NAMES: Mapping[Any, str] = {
    ATTENTION: str(torch.ops.aten.scaled_dot_product_attention.default),
    NORM_SAVING: str(torch.ops.aten.native_layer_norm.default),
    NORM_BACKWARD: str(torch.ops.aten.native_layer_norm_backward.default),
}
"""The names of kernelfarm's operators that have the meaning of one of torch's."""


def wire_name(target: Any) -> str:
    """An operator's name in a captured graph."""
    return _WIRE_NAMES.get(target) or str(target)


OWN: Mapping[str, OpOverload] = {
    wire_name(operator): operator for operator in (ATTENTION, ATTENTION_SAVING, ATTENTION_BACKWARD)
}
"""kernelfarm's operators by wire name; a norm's wire name stands for torch's own operator."""

_TRITON_WRAPPER = "triton_kernel_wrapper_functional"


def is_user_kernel(target: Any) -> bool:
    """True for PyTorch's operator that wraps a Triton kernel of the user."""
    return isinstance(target, HigherOrderOperator) and str(target) == _TRITON_WRAPPER


def is_tile_program(target: Any) -> bool:
    """True for kernelfarm's operator for a tile program on a processor."""
    return target is TILE_PROGRAM
