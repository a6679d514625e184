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
ATTENTION_SAVING = "kernelfarm.attention_saving.default"
ATTENTION_BACKWARD = "kernelfarm.attention_backward.default"
_DROPOUT_AT = {ATTENTION: 4, FLASH_ATTENTION: 3}
"""The position of the dropout among an operator's arguments; operators for training have none."""
_CAUSAL_AT = {ATTENTION: 5, FLASH_ATTENTION: 4, ATTENTION_SAVING: 4, ATTENTION_BACKWARD: 7}
_SCALE_AT = {ATTENTION_SAVING: 5, ATTENTION_BACKWARD: 8}
"""The positions of the causal mask and of the scale, which others have by name."""
_QUERY_AT = {ATTENTION_BACKWARD: 3}
"""The position of the query among an operator's tensors, which is the first of others."""
_OPERANDS_WITH_MASK = (4, 7)
"""The tensors of attention with a mask, and of its gradients."""
_LARGEST_SCALE = 1e30
"""A larger factor is no scale of scores in f32; the framework computes what it makes of it."""


def with_added_mask(builder: PrimsBuilder, operands: Sequence[Tensor]) -> Sequence[Tensor]:
    """The operands of attention or of its gradients with a bool mask, which comes last, as numbers.

    They are 0 where the mask holds, else -inf.

    The framework's kernels add the mask to the scores, so the framework would convert a bool mask
    in each call, with three launches. Converted here, the mask is computed once and layers share
    it.
    """
    *others, mask = operands
    if len(operands) not in _OPERANDS_WITH_MASK or mask.dtype is not DType.BOOL:
        return operands
    nothing = builder.full(0.0, others[0].dtype)
    return *others, builder.where(mask, nothing, -math.inf)


def attention_scale(node: Node, operands: Sequence[Tensor]) -> float | None:
    """The factor of the scores of attention without dropout; None for others."""
    query = operands[_QUERY_AT.get(node.op, 0) :][:1]
    if node.op not in _CAUSAL_AT or not query or not query[0].shape:
        return None
    dropout = _argument(node, _DROPOUT_AT.get(node.op), "dropout_p", 0)
    if dropout != 0 or _causal_argument(node) not in (0, 1):
        return None
    scale, width = _argument(node, _SCALE_AT.get(node.op), "scale", None), query[0].shape[-1]
    if scale is None and width.is_constant and width.constant > 0:
        return 1 / math.sqrt(width.constant)
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        return None
    return float(scale) if abs(scale) < _LARGEST_SCALE else None


def is_causal(node: Node) -> bool:
    """True for attention in which query number i sees the keys up to number i."""
    return node.op in _CAUSAL_AT and _causal_argument(node) == 1


def _causal_argument(node: Node) -> Arg:
    return _argument(node, _CAUSAL_AT[node.op], "is_causal", 0)


def _argument(node: Node, position: int | None, name: str, default: Arg) -> Arg:
    """An argument by its position if it has one, else by name."""
    if position is not None and position < len(node.args):
        return node.args[position]
    return node.attr(name, default)


EXTERN_OPERANDS.update(
    {
        ATTENTION: with_added_mask,
        ATTENTION_SAVING: with_added_mask,
        ATTENTION_BACKWARD: with_added_mask,
    }
)
