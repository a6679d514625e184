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


def picker(places: Sequence[int]) -> Pick:
    """A function that gives the items at these places."""
    if not places:
        return lambda items: ()
    if len(places) == 1:
        only = places[0]
        return lambda items: (items[only],)
    return operator.itemgetter(*places)
