"""Judges whether a result is right: exact where eager is exact, else within rounding.

A float is right if it is within a few units in the last place of eager's result or of the float64
result, or if its error against float64 is at most twice eager's. A sum in another order may err at
an element where eager happens to be exact: then the largest errors of the whole tensors are
compared. If results are smaller than their operands, the bound is the rounding of a sum of the
operands. Such a verdict is `loose`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

FEW_ULP = 8
"""Our elementary functions and eager's differ by so much: each is off by up to 4."""

UNJUDGED_ULP = 64
"""Taken as eager's error, in units in the last place, where no type is more precise."""

MOST_ELEMENTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """An empty `problem` means right; `is_loose`: judged by the errors of whole tensors."""

    problem: str = ""
    is_loose: bool = False


def judge(
    result: Any,
    eager: Any,
    exact: Any | None,
    inputs: Sequence[torch.Tensor] = (),
    neighbours: Sequence[tuple[Any, Any]] = (),
    *,
    is_undefined: bool = False,
) -> Verdict:
    """Compares structures of tensors and numbers; `exact` is the float64 result, if there is one.

    `neighbours` are the results of eager and float64 on inputs that differ by a rounding: on the
    inputs themselves, eager may happen to be exact. `is_undefined` compares only types, shapes and
    strides.
    """
    ours, our_spec = pytree.tree_flatten(result)
    theirs, their_spec = pytree.tree_flatten(eager)
    if len(ours) != len(theirs):
        return Verdict(f"{our_spec}; expected {their_spec}")
    references = _references(exact, theirs)
    is_loose = False
    total = max((_total(tensor) for tensor in inputs), default=(0.0, 0))
    for number, (mine, model) in enumerate(zip(ours, theirs, strict=True)):
        near = max((_error_of(pair, number) for pair in neighbours), default=0.0)
        reference = _Reference(references[number], *total, near)
        verdict = _judge_one(mine, model, reference, is_undefined=is_undefined)
        if verdict.problem:
            return Verdict(f"output {number}: {verdict.problem}")
        is_loose |= verdict.is_loose
    return Verdict("", is_loose)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The float64 result, and the largest sum of an input's elements, with their number.

    `near_error` is eager's largest error on neighbouring inputs.
    """

    exact: torch.Tensor | None
    total: float
    numel: int
    near_error: float


def _error_of(pair: tuple[Any, Any], number: int) -> float:
    """Eager's largest error in one output."""
    eager, exact = (pytree.tree_leaves(results) for results in pair)
    if len(eager) != len(exact) or not _is_reference(exact[number], eager[number]):
        return 0.0
    error = (eager[number].detach().double() - exact[number].detach()).abs()
    finite = error[error.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _total(tensor: torch.Tensor) -> tuple[float, int]:
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        return 0.0, 0
    finite = tensor.detach().double().nan_to_num(0.0, 0.0, 0.0)
    return float(finite.abs().sum()), tensor.numel()


def _references(exact: Any | None, theirs: Sequence[Any]) -> list[Any]:
    leaves = pytree.tree_leaves(exact) if exact is not None else []
    if len(leaves) != len(theirs):
        return [None] * len(theirs)
    return [
        leaf if _is_reference(leaf, model) else None
        for leaf, model in zip(leaves, theirs, strict=True)
    ]


def _is_reference(leaf: Any, model: Any) -> bool:
    both = isinstance(leaf, torch.Tensor) and isinstance(model, torch.Tensor)
    return both and leaf.shape == model.shape and leaf.dtype is torch.float64


def _judge_one(mine: Any, model: Any, reference: _Reference, *, is_undefined: bool) -> Verdict:
    if not isinstance(model, torch.Tensor):
        return Verdict("" if _same_number(mine, model) else f"{mine!r}; expected {model!r}")
    problem = _form_problem(mine, model)
    has_values = model.numel() and model.layout is torch.strided and not is_undefined
    if problem or not has_values:
        return Verdict(problem)
    mine, model = _in_parts(mine.detach()), _in_parts(model.detach())
    if not model.dtype.is_floating_point:
        return _shown(mine != model, mine, model)
    return _within_rounding(mine, model, reference)


def _in_parts(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as real and imaginary parts; wide unsigned integers as signed ones."""
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor.resolve_conj())
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


_SIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def _same_number(mine: Any, model: Any) -> bool:
    if isinstance(mine, float) and isinstance(model, float) and math.isnan(model):
        return math.isnan(mine)
    return bool(mine == model)


def _form_problem(mine: Any, model: torch.Tensor) -> str:
    """The first difference in type, shape or strides; empty if there is none."""
    if not isinstance(mine, torch.Tensor):
        return f"{type(mine).__name__}; expected a tensor"
    if (mine.dtype, mine.shape) != (model.dtype, model.shape):
        return f"{mine.dtype} {tuple(mine.shape)}; expected {model.dtype} {tuple(model.shape)}"
    if model.layout is torch.strided and not _same_strides(mine, model):
        return f"strides {mine.stride()}; expected {model.stride()}"
    return ""


def _same_strides(mine: torch.Tensor, model: torch.Tensor) -> bool:
    triples = zip(model.shape, mine.stride(), model.stride(), strict=True)
    return not model.numel() or all(n == 1 or a == b for n, a, b in triples)


def _within_rounding(mine: torch.Tensor, model: torch.Tensor, reference: _Reference) -> Verdict:
    info = torch.finfo(model.dtype)
    x, e = mine.double(), model.double()
    r = reference.exact.detach() if reference.exact is not None else e
    rounded = r.to(model.dtype).double()
    fine = _close(x, e, info) | _close(x, rounded, info)
    fine |= (x - r).abs() <= 2 * (e - r).abs()
    if bool(fine.all()):
        return Verdict()
    finite = x.isfinite() & e.isfinite() & r.isfinite()
    if bool((~fine & ~finite).any()):
        return _shown(~fine & ~finite, mine, model)
    error, their_error = (float((t - r).abs()[finite].max()) for t in (x, e))
    their_error = max(their_error, reference.near_error)
    size = float(r.abs()[finite].max())
    if model.numel() < reference.numel:
        size = max(size, reference.total)
    has_wider = reference.exact is not None and model.dtype is not torch.float64
    ulp = FEW_ULP if has_wider else UNJUDGED_ULP
    if error <= 2 * their_error + ulp * info.eps * size:
        return Verdict(is_loose=True)
    return _shown(~fine, mine, model)


def _close(x: torch.Tensor, y: torch.Tensor, info: torch.finfo) -> torch.Tensor:
    ulp = info.eps * y.abs().clamp(min=info.tiny)
    return (x == y) | ((x - y).abs() <= FEW_ULP * ulp) | (x.isnan() & y.isnan())


def _shown(wrong: torch.Tensor, mine: torch.Tensor, model: torch.Tensor) -> Verdict:
    if not bool(wrong.any()):
        return Verdict()
    positions = wrong.nonzero()[:MOST_ELEMENTS_SHOWN].tolist()
    shown = "; ".join(
        f"at {p}: {mine[tuple(p)].item()}, expected {model[tuple(p)].item()}" for p in positions
    )
    return Verdict(f"{int(wrong.sum())} of {model.numel()} elements wrong: {shown}")
