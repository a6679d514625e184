"""Picking several items of a list at once, and tensors made of others before they are picked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]

Form = Callable[[torch.Tensor], torch.Tensor]

Formed = tuple[int, int, Form]
"""What goes to the first place of a list: the item at the second one, brought to a form."""


def picker(indices: Sequence[int]) -> Pick:
    """A function that gives the items at these places."""
    if not indices:
        return lambda items: ()
    if len(indices) == 1:
        only = indices[0]
        return lambda items: (items[only],)
    return operator.itemgetter(*indices)
