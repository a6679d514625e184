"""Calls a program with the calling convention of its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelfarm.client.programs.graph_runner import BoxedFunction
from kernelfarm.client.pytorch.private import (
    _set_grad_enabled,
    mark_dynamo_propagated_dynamic_indices,
    maybe_mark_dynamic_helper,
)
from kernelfarm.client.traces.calling_convention import CallingConvention, OutputConvention

_mark_dynamic = mark_dynamo_propagated_dynamic_indices or maybe_mark_dynamic_helper
"""Marks the varying extents of a result, for Dynamo's later graphs; torch 2.13 renamed it."""


def callable_for(convention: CallingConvention, program: BoxedFunction) -> Callable[..., Any]:
    """The function for Dynamo: the program with the calling convention of AOT Autograd."""
    called: Callable[..., Any] = torch.compiler.disable(  # type: ignore[no-untyped-call] # torch's
        _wrapped(convention, program), reason="a compiled graph"
    )
    return called


def _wrapped(convention: CallingConvention, program: BoxedFunction) -> Callable[..., Any]:
    outputs, written = convention.outputs, convention.written
    is_plain = all(fact == OutputConvention() for fact in outputs)

    def call(*args: Any) -> Any:
        if written:
            torch.autograd.graph.increment_version([args[index] for index in written])
        has_grad = torch.is_grad_enabled()
        if has_grad:
            _set_grad_enabled(False)
        try:
            results = program(list(args))
            if is_plain:
                return results
            return [_given(f, r, args) for f, r in zip(outputs, results, strict=True)]
        finally:
            if has_grad:
                _set_grad_enabled(True)

    return call


def _given(fact: OutputConvention, result: Any, args: Sequence[Any]) -> Any:
    if fact.argument is not None:
        base = args[fact.argument]
        if fact.offset is None:
            result = base
        else:
            first = base.storage_offset() + fact.offset
            result = base.as_strided(result.size(), result.stride(), first)
    if fact.dynamic and _mark_dynamic is not None:
        _mark_dynamic(result, set(fact.dynamic))
    return result
