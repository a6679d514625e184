"""Which nodes have the shapes of attention, or of its gradients: the graph came from outside.

Shapes:
    query: (batch, heads, queries, width); key: (batch, heads of keys, keys, width)
    value: (batch, heads of keys, keys, value width); result: (batch, heads, queries, value width)
    mask: up to four axes, each an extent of the scores (batch, heads, queries, keys) or 1
"""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.graph_ir import TensorType

_AXES = 4


def is_attention(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if operands (query, key, value, mask) and the first result have these shapes."""
    if len(kinds) not in (3, 4) or not results:
        return False
    query, key, value = kinds[:3]
    if any(kind.rank != _AXES for kind in (query, key, value)):
        return False
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    divides = heads.is_constant and groups.is_constant and groups.constant > 0
    return (
        len({kind.dtype for kind in kinds}) == 1
        and key.shape == (batch, groups, keys, width)
        and value.shape[:3] == (batch, groups, keys)
        and divides
        and heads.constant % groups.constant == 0
        and results[0].shape == (batch, heads, length, value.shape[3])
        and results[0].dtype is query.dtype
        and (len(kinds) == 3 or _is_mask(kinds[3], query, key))
    )


def are_gradients(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if operands and results have the shapes of attention's gradients.

    Operands are (grad, output, log-sum-exps) before those of attention, results have the shapes of
    query, key and value.
    """
    if len(kinds) not in (6, 7) or len(results) not in (3, 4):
        return False
    grad, output, sums, *given = kinds
    return (
        is_attention(given, (output,))
        and (grad.dtype, grad.shape) == (output.dtype, output.shape)
        and (sums.dtype, sums.shape) == (DType.F32, output.shape[:3])
        and all(
            (made.dtype, made.shape) == (own.dtype, own.shape)
            for made, own in zip(results, given[:3], strict=False)
        )
    )


def is_mask_gradient(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if the fourth result of gradients is like the mask, the last of all operands."""
    if len(kinds) != 7 or len(results) != 4:
        return False
    made, mask = results[3], kinds[6]
    return (made.dtype, made.shape) == (mask.dtype, mask.shape)


def _is_mask(mask: TensorType, query: TensorType, key: TensorType) -> bool:
    """True if a mask has an extent of the scores, or 1, along each of its axes."""
    scores = (*query.shape[:3], key.shape[2])
    if mask.rank > _AXES:
        return False
    last = scores[_AXES - mask.rank :]
    return all(own in (ONE, whole) for own, whole in zip(mask.shape, last, strict=True))
