"""Attention: the framework's kernels run it, on the mask that the farm makes for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import EXTERN_OPERANDS
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType

_OPERANDS_WITH_MASK = 4


def with_added_mask(builder: PrimsBuilder, operands: Sequence[Tensor]) -> Sequence[Tensor]:
    """A mask of booleans as what is added to scores: 0 where it holds, else -inf.

    The framework's kernels add numbers, so it would convert the mask at each call, in three
    launches. Made here, it fuses with what computes the mask, and layers share it.
    """
    if len(operands) != _OPERANDS_WITH_MASK or operands[3].dtype is not DType.BOOL:
        return operands
    query, key, value, mask = operands
    nothing = builder.full(0.0, query.dtype)
    return query, key, value, builder.where(mask, nothing, -math.inf)


EXTERN_OPERANDS.update(
    {
        "aten.scaled_dot_product_attention.default": with_added_mask,
        "kernelfarm.attention_saving.default": with_added_mask,
    }
)
