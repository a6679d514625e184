"""What operators are called in the graph that travels."""

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

_WIRE_NAMES: Mapping[Any, str] = {
    ATTENTION: str(torch.ops.aten.scaled_dot_product_attention.default),
    NORM_SAVING: str(torch.ops.aten.native_layer_norm.default),
    NORM_BACKWARD: str(torch.ops.aten.native_layer_norm_backward.default),
}
"""Of operators of ours that mean what one of torch's does."""


def wire_name(target: Any) -> str:
    """An operator's name in the graph that travels."""
    return _WIRE_NAMES.get(target) or str(target)


OWN: Mapping[str, torch._ops.OpOverload] = {
    wire_name(operator): operator for operator in (ATTENTION, ATTENTION_SAVING, ATTENTION_BACKWARD)
}
"""Operators of ours by their names on the wire; under a norm's name torch's own is found."""
