"""Compares a function that the farm compiled with the same function in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Make = Callable[[], Sequence[Any]]


def compiled(function: Callable[..., Any], *, fallback_random: bool = False, **options: Any) -> Any:
    """The function compiled by the farm; if the farm cannot compile it, calls raise."""
    stated = {"strict": True, "fallback_random": fallback_random}
    return torch.compile(function, backend="kernelfarm", options=stated, **options)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same random numbers at each call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def assert_like_eager(
    function: Callable[..., Any], make: Make, *, rtol: float | None = None, **options: Any
) -> None:
    """Two calls return eager's values, types, strides and aliases, and change inputs as eager does.

    `make` returns new arguments, equal at each call.
    """
    fast = compiled(function, **options)
    for _ in range(2):
        theirs, ours = make(), make()
        torch.manual_seed(7)
        expected = function(*theirs)
        torch.manual_seed(7)
        result = fast(*ours)
        assert_same((result, ours), (expected, theirs), rtol=rtol)
        assert _memory((ours, result)) == _memory((theirs, expected)), "other aliases than eager's"
        assert _given_back(ours, result) == _given_back(theirs, expected), "other objects"


def assert_same(ours: Any, theirs: Any, *, rtol: float | None = None) -> None:
    """Two structures hold equal tensors: values, element types, shapes and strides."""
    mine, models = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    for number, (value, model) in enumerate(zip(mine, models, strict=True)):
        if not isinstance(model, torch.Tensor):
            assert value == model, f"{number}: {value}; expected {model}"
            continue
        assert value.requires_grad == model.requires_grad, number
        assert _strides(value) == _strides(model), (number, value.stride(), model.stride())
        is_exact = rtol is None or value.dtype.itemsize == 1
        close = {} if is_exact else {"rtol": rtol, "atol": rtol}
        torch.testing.assert_close(value, model, equal_nan=True, **close)


def _strides(tensor: torch.Tensor) -> list[int]:
    if not tensor.numel():
        return []
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]


def _memory(values: Any) -> list[int | None]:
    """For each tensor the number of its storage, in order of appearance; None if it is empty."""
    numbers: dict[int, int] = {}
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [
        numbers.setdefault(leaf.untyped_storage().data_ptr(), len(numbers))
        if leaf.numel()
        else None
        for leaf in leaves
    ]


def _given_back(inputs: Any, results: Any) -> list[int | None]:
    """For each result the input or earlier result that is the same object."""
    known = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    found: list[int | None] = []
    for leaf in pytree.tree_leaves(results):
        found.append(next((i for i, other in enumerate(known) if other is leaf), None))
        known.append(leaf)
    return found
