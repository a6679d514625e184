"""Picks several items of a list at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]

Form = Callable[[torch.Tensor], torch.Tensor]

Formed = tuple[int, int, Form]
"""`(index, source, form)`: before items are picked, `items[index] = form(items[source])`."""


def picker(indices: Sequence[int]) -> Pick:
    """A function that returns the items at these indices."""
    if not indices:
        return lambda items: ()
    if len(indices) == 1:
        only = indices[0]
        return lambda items: (items[only],)
    return operator.itemgetter(*indices)
