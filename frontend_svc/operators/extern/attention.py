"""Attention: the framework's kernels run it, on a mask that the farm computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import EXTERN_OPERANDS
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Arg, Node

ATTENTION = "aten.scaled_dot_product_attention.default"
FLASH_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
_DROPOUT_AT = {ATTENTION: 4, FLASH_ATTENTION: 3}
"""The position of the dropout among an operator's arguments, behind which is the causal mask."""
_OPERANDS_WITH_MASK = 4
_LARGEST_SCALE = 1e30
"""A larger factor is no scale of scores in f32; the framework computes what it makes of it."""


def with_added_mask(builder: PrimsBuilder, operands: Sequence[Tensor]) -> Sequence[Tensor]:
    """The operands with a bool mask replaced by numbers: 0 where it holds, else -inf.

    The framework's kernels add the mask to the scores, so the framework would convert a bool mask
    in each call, with three launches. Converted here, the mask is computed once and layers share
    it.
    """
    if len(operands) != _OPERANDS_WITH_MASK or operands[3].dtype is not DType.BOOL:
        return operands
    query, key, value, mask = operands
    nothing = builder.full(0.0, query.dtype)
    return query, key, value, builder.where(mask, nothing, -math.inf)


def attention_scale(node: Node, operands: Sequence[Tensor]) -> float | None:
    """The factor of the scores of attention without dropout; None for others."""
    first = _DROPOUT_AT.get(node.op)
    if first is None or not operands or not operands[0].shape:
        return None
    if _argument(node, first, "dropout_p", 0) != 0 or _causal_argument(node) not in (0, 1):
        return None
    scale, width = node.attr("scale"), operands[0].shape[-1]
    if scale is None and width.is_constant and width.constant > 0:
        return 1 / math.sqrt(width.constant)
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        return None
    return float(scale) if abs(scale) < _LARGEST_SCALE else None


def is_causal(node: Node) -> bool:
    """True for attention in which query number i sees the keys up to number i."""
    return node.op in _DROPOUT_AT and _causal_argument(node) == 1


def _causal_argument(node: Node) -> Arg:
    return _argument(node, _DROPOUT_AT[node.op] + 1, "is_causal", 0)


def _argument(node: Node, position: int, name: str, default: Arg) -> Arg:
    return node.args[position] if position < len(node.args) else node.attr(name, default)


EXTERN_OPERANDS.update(
    {
        ATTENTION: with_added_mask,
        "kernelfarm.attention_saving.default": with_added_mask,
    }
)
