"""Loads a verified package: only here does PyTorch unpickle one."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.packages.checks import GuardFailedError, NotLoadableError
from kernelfarm.client.packages.shared import Package
from kernelfarm.client.precompiled.load import LoadingProcess, loading_as
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.pytorch.private.packages import (
    checked_call,
    drop_unused_trace_log,
    failed_guard,
)
from kernelfarm.client.traces.signed_entries import SharedEntry


class LoadedPackage:
    """The function of a package: `run` calls it, if `holds` says that its guards hold."""

    __slots__ = ("holds", "run")

    def __init__(self, function: Any) -> None:
        self.holds, self.run = checked_call(function)


def load_package(
    found: SharedEntry[Package],
    stated: Mapping[str, Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> LoadedPackage:
    """The function of a package that was verified, if its guards hold for this call.

    `stated` are the settings that this process stated in code.

    Raises:
        NotLoadableError: PyTorch cannot load it, or its program is not found.
        GuardFailedError: a guard does not hold.
    """
    package = found.entry
    programs: dict[bytes, PrefetchedProgram] = {}
    if found.prefetched is not None:
        programs[package.key] = found.prefetched
    drop_unused_trace_log()
    try:
        with loading_as(LoadingProcess(stated, programs)):
            function: Any = torch.compiler.load_compiled_function(
                io.BytesIO(package.body), f_globals=_scope(call)
            )
        holds = function.guard_check(*args, **kwargs)
        reason = "" if holds else failed_guard(function, *args, **kwargs)
    except Exception as error:  # PyTorch may raise anything for a package that does not fit
        raise NotLoadableError(
            f"PyTorch cannot load the package: {type(error).__name__}: {error}"
        ) from error
    if reason:
        raise GuardFailedError(f"a guard of the package does not hold: {reason}")
    counters.count("packages.loaded")
    return LoadedPackage(function)


def _scope(call: Callable[..., Any]) -> dict[str, Any]:
    """The module in which bytecode finds names; modules are traced from their `__call__`."""
    traced: Any = type(call).__call__ if isinstance(call, torch.nn.Module) else call
    scope: dict[str, Any] = traced.__globals__
    return scope
