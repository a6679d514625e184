"""One program to be run on a GPU, and what it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]
MakeTensors = Callable[[], Tensors]


@dataclass(frozen=True)
class Case:
    """A function with one or several lists of arguments, made on the CPU when they are wanted.

    `dynamic` is as in `torch.compile`: with it one program serves all the lists. The numbers of a
    `is_random` function are judged by what NumPy makes of the same seeds. `offset` elements stand
    before each argument in its memory, so that none begins at an aligned address. `is_exact`:
    nothing is rounded, so eager's very values are expected. `has_gradients`: the gradients of all
    floating arguments are judged too. `has_products`: the results are sums of products, which may
    be smaller than a sum of an argument's elements, so that no such sum bounds their errors.
    """

    name: str
    function: Callable[..., Any]
    arguments: Sequence[MakeTensors]
    dynamic: bool | None = None
    is_random: bool = False
    is_exact: bool = False
    has_gradients: bool = False
    has_products: bool = False
    offset: int = 0


def case(name: str, function: Callable[..., Any], *arguments: MakeTensors, **more: Any) -> Case:
    """A case, its lists of arguments written one after the other."""
    return Case(name, function, arguments, **more)


def called(case: Case, function: Callable[..., Any], args: Tensors) -> Any:
    """What the function gives, what it made of its arguments, and where asked for the gradients."""
    if not case.has_gradients:
        with torch.no_grad():
            return function(*args), args
    leaves = [arg.requires_grad_() for arg in args if arg.is_floating_point()]
    result = function(*args)
    seed = torch.linspace(-1, 1, result.numel(), device=result.device, dtype=result.dtype)
    return result.detach(), torch.autograd.grad(result, leaves, seed.view(result.shape))


def floats(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0
) -> torch.Tensor:
    """Normally distributed numbers, the same in each run."""
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def places(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    """Indices from 0 to below - 1, the same in each run."""
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape) + below)
    return torch.randint(0, below, shape, generator=generator)


def distinct(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers of which no two of a row are equal, in an order that is the same in each run."""
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    rows = torch.rand(shape, generator=generator).argsort(-1)
    return rows.to(dtype) - shape[-1] // 2


def apart(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of which no two are equal, in an order that is the same in each run."""
    count = torch.Size(shape).numel()
    return distinct(count, seed=seed).view(shape)


def on(device: torch.device, tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy on a device in its own layout, `offset` elements after its memory's begin."""
    moved = tensor.to(device, copy=True)
    if not offset or not moved.is_contiguous():
        return moved
    memory = moved.new_empty(moved.numel() + offset)
    memory[offset:] = moved.flatten()
    return memory[offset:].view(moved.shape)
