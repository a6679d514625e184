"""Attention: the framework's kernels run it, on a mask that the farm computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import EXTERN_OPERANDS
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType

_OPERANDS_WITH_MASK = 4


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


EXTERN_OPERANDS.update(
    {
        "aten.scaled_dot_product_attention.default": with_added_mask,
        "kernelfarm.attention_saving.default": with_added_mask,
    }
)
