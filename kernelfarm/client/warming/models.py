"""Builds the models of a manifest: runs their Python entries, and makes inputs of the stated sizes.

An entry is the user's own code, which runs in the job's process. Its inputs are examples: their
values are repeated or cut to the stated shapes, so that indices stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.pytorch.private import mark_dynamic
from kernelfarm.client.warming.cases import Case
from kernelfarm.client.warming.manifest import ModelSpec, Shapes, SizeRange
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError

Call = tuple[list[Any], dict[str, Any]]


class CaptureFailedError(CallerError):
    """A model cannot be built, run or captured; the message has the cause."""

    reason = "CAPTURE_FAILED"


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A module or function of one case, and the arguments with which it is captured."""

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def build_model(case: Case) -> BuiltModel:
    """The model of a case; varying sizes of its inputs are marked.

    Raises:
        CaptureFailedError: the entry fails or returns something else, or a shape does not fit.
    """
    model, args, kwargs = _entry_result(case.model)
    if case.dtype:
        dtype = dtype_to_torch(DType(case.dtype))
        if not isinstance(model, torch.nn.Module):
            raise CaptureFailedError(
                f"{case.model.entry} returned a {type(model).__name__}; `dtypes` needs a module"
            )
        model = model.to(dtype)
        args = [_cast(value, dtype) for value in args]
        kwargs = {name: _cast(value, dtype) for name, value in kwargs.items()}
    args, kwargs = _resized((args, kwargs), case)
    return BuiltModel(model, args, kwargs)


def _entry_result(spec: ModelSpec) -> tuple[Any, list[Any], dict[str, Any]]:
    assert spec.entry is not None
    module_name, _, function_name = spec.entry.partition(":")
    try:
        function = getattr(import_module(module_name), function_name)
        result = function(**spec.arguments)
    except Exception as error:  # the user's code may raise anything
        raise CaptureFailedError(
            f"{spec.entry}: {type(error).__name__}: {error}; expected a function that returns a"
            " module and its arguments (modules are found in the current folder and on PYTHONPATH)"
        ) from error
    match result:
        case (model, (tuple() | list()) as args) if callable(model):
            return model, list(args), {}
        case (model, (tuple() | list()) as args, dict() as kwargs) if callable(model):
            return model, list(args), kwargs
    raise CaptureFailedError(
        f"{spec.entry} returned a {type(result).__name__}; expected (module, arguments) or"
        " (module, arguments, named arguments)"
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def _resized(call: Call, case: Case) -> Call:
    args, kwargs = list(call[0]), dict(call[1])
    shapes: Shapes = case.model.inputs
    if isinstance(shapes, dict):
        if unknown := sorted(shapes.keys() - kwargs.keys()):
            raise CaptureFailedError(
                f"inputs name {', '.join(unknown)}; {case.model.entry} returned the named arguments"
                f" {', '.join(kwargs) or '(none)'}"
            )
        named = {name: _shaped(kwargs[name], s, case, name) for name, s in shapes.items()}
        return args, kwargs | named
    if shapes and len(shapes) != len(args):
        raise CaptureFailedError(
            f"inputs has {len(shapes)} shapes; {case.model.entry} returned {len(args)} arguments"
        )
    shaped = [
        _shaped(v, s, case, str(n)) for n, (v, s) in enumerate(zip(args, shapes, strict=False))
    ]
    return shaped or args, kwargs


def _shaped(value: Any, shape: list[int | str] | None, case: Case, name: str) -> Any:
    if shape is None:
        return value
    if not isinstance(value, torch.Tensor) or value.dim() != len(shape):
        seen = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise CaptureFailedError(
            f"input {name} of {case.model.entry} is {seen}; expected a tensor of {len(shape)} axes,"
            f" as {shape} has"
        )
    ranges: dict[int, SizeRange] = {}
    for axis, stated in enumerate(shape):
        size = case.sizes[stated] if isinstance(stated, str) else stated
        if isinstance(size, SizeRange):
            ranges[axis] = size
            size = _example_extent(value.shape[axis], size)
        value = _repeated(value, axis, size, name)
    value = value.contiguous()
    for axis, size in ranges.items():
        mark_dynamic(value, axis, min=size.min, max=size.max)
    return value


def _example_extent(seen: int, size: SizeRange) -> int:
    """The example's own extent if it is in the range; torch makes 0 and 1 constants."""
    return seen if max(2, size.min) <= seen <= size.max else min(size.max, max(2, size.min))


def _repeated(value: torch.Tensor, axis: int, extent: int, name: str) -> torch.Tensor:
    seen = value.shape[axis]
    if seen == extent:
        return value
    if not seen:
        raise CaptureFailedError(
            f"input {name} has no element on axis {axis} to repeat; return a larger example"
        )
    index = torch.arange(extent, device=value.device) % seen
    return value.index_select(axis, index)
