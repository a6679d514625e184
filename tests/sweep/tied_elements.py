"""Operators that answer with elements and where they stand: of equal ones eager may pick any.

`topk` or `kthvalue` promise no order among equal elements, and eager's choice changes with the
length of the row. Places are right if they name these elements, each at most once in a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

CHOOSING = frozenset({"argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "sort"})
"""Operators whose places among equal elements are a choice."""

CHOOSING_GRADIENTS = CHOOSING | {"msort"}
"""Operators whose gradients go to the chosen elements, whether or not the choice is a result."""


def with_chosen_gradients(ours: Any, eager: Any, source: torch.Tensor) -> Any:
    """Our (results, (gradient,)) with eager's choices, if ours differ among equal elements alone.

    Gradients go where the places are: each gradient must have come to an element of the same value
    as in eager. Whatever is wrong comes back as it was: the judge compares it.
    """
    if not (_has_one_gradient(ours) and _has_one_gradient(eager)):
        return ours
    results = with_chosen_places(ours[0], eager[0], source)
    (mine,), (theirs,) = ours[1], eager[1]
    if mine.shape != source.shape or theirs.shape != source.shape:
        return results, ours[1]
    if torch.equal(_by_element(source, mine), _by_element(source, theirs)):
        return results, eager[1]
    return results, ours[1]


def _has_one_gradient(answer: Any) -> bool:
    """True for (results, (gradient,)) as a run with gradients gives it."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], tuple):
        return False
    return len(answer[1]) == 1 and isinstance(answer[1][0], torch.Tensor)


def _by_element(source: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """(elements, 2): each element with its gradient, ordered by both; NaN as one number."""
    pairs = torch.stack([source.detach().double().flatten(), gradient.double().flatten()], 1)
    pairs = pairs.nan_to_num(nan=torch.finfo(torch.float64).max)
    pairs = pairs[pairs[:, 1].sort(stable=True).indices]
    return pairs[pairs[:, 0].sort(stable=True).indices]


def with_chosen_places(ours: Any, eager: Any, source: torch.Tensor) -> Any:
    """Our (values, places) with eager's places, if ours name our values as eager's name eager's.

    Places alone become eager's if both name the same elements in the same order. Whatever is no
    such answer, or wrong, comes back as it was: the judge compares it.
    """
    if isinstance(ours, torch.Tensor) and isinstance(eager, torch.Tensor):
        return eager if _is_same_order(ours, eager, source) else ours
    if not (_is_pair(ours) and _is_pair(eager)) or not source.ndim:
        return ours
    values, positions = ours
    if positions.shape != eager[1].shape or positions.dtype is not eager[1].dtype:
        return ours
    for dim, known in _axes_of(source, eager):
        mine = positions if known.ndim == positions.ndim else positions.unsqueeze(dim)
        if _names(source, dim, mine, values.reshape(known.shape)):
            return type(ours)((values, eager[1]))
    return ours


def _is_same_order(ours: torch.Tensor, eager: torch.Tensor, source: torch.Tensor) -> bool:
    if (
        not ours.dtype is eager.dtype is torch.int64
        or not ours.shape == eager.shape == source.shape
    ):
        return False
    for dim in range(source.ndim):
        if eager.numel() and not 0 <= int(eager.min()) <= int(eager.max()) < source.shape[dim]:
            continue
        named = source.detach().gather(dim, eager)
        if _names(source, dim, eager, named) and _names(source, dim, ours, named):
            return True
    return False


def _is_pair(results: Any) -> bool:
    if not isinstance(results, tuple) or len(results) != 2:
        return False
    values, positions = results
    tensors = isinstance(values, torch.Tensor) and isinstance(positions, torch.Tensor)
    return tensors and positions.dtype is torch.int64 and values.shape == positions.shape


def _axes_of(source: torch.Tensor, eager: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """The axes along which eager's places name eager's values, with these places in full rank."""
    values, positions = eager
    for dim in range(source.ndim):
        known = positions if positions.ndim == source.ndim else positions.unsqueeze(dim)
        if known.ndim == source.ndim and _names(source, dim, known, values.reshape(known.shape)):
            yield dim, known


def _names(source: torch.Tensor, dim: int, positions: torch.Tensor, values: torch.Tensor) -> bool:
    """True if places along an axis are different, within it, and hold the values."""
    extent = source.shape[dim]
    others = [k for k in range(source.ndim) if k != dim]
    if any(positions.shape[k] != source.shape[k] for k in others) or positions.shape[dim] > extent:
        return False
    if bool(((positions < 0) | (positions >= extent)).any()):
        return False
    in_order = positions.sort(dim).values
    if bool((in_order.diff(dim=dim) == 0).any()):
        return False
    named = source.detach().gather(dim, positions)
    return bool(((named == values) | (named.isnan() & values.isnan())).all())
