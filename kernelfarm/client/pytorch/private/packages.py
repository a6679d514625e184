"""Packages of PyTorch's own precompilation: made, read, and checked before a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kernelfarm.client.pytorch import private

if TYPE_CHECKING:
    from torch import fx


def package_name(module: fx.GraphModule) -> str | None:
    """The graph's name in the package that PyTorch precompiles; None if it precompiles none."""
    return getattr(module, "_backend_id", None)


def has_packages() -> bool:
    """True if this PyTorch can make and load packages."""
    return hasattr(torch.compiler, "load_compiled_function")


def is_caching_precompile() -> bool:
    """True if PyTorch stores packages by itself (`TORCH_CACHING_PRECOMPILE=1`)."""
    return bool(import_module("torch._dynamo.config").caching_precompile)


@contextmanager
def storing_graphs(tag: str) -> Iterator[None]:
    """Lets AOT Autograd store its graphs for a package, together with their backward graphs.

    Its cache must not take graphs that another compiler made: `tag` is part of their keys.
    """
    config = import_module("torch._functorch.config")
    stated = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
    stated["bypass_autograd_cache_key"] = True
    tags = import_module("torch.compiler.config").patch(cache_key_tag=tag)
    with config.patch(stated), tags:
        yield


def import_for_packages() -> None:
    """Imports what loading a package imports, in about a second."""
    import_module("torch._dynamo.aot_compile")


def drop_unused_trace_log() -> None:
    """Lets PyTorch drop the handler of its structured log, unless the log is written.

    It does so at the first record, which would otherwise be all guards of a package as text.
    """
    private.trace_structured("kernelfarm_package", expect_trace_id=False)


_MOST_RESTARTS = 8
"""Of one `aot_compile`; each makes constants of more floats."""


def aot_compiled(call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `aot_compile` makes of one call of a compiled module or function.

    Raises:
        Exception: PyTorch, the backend or the model's own code says why it cannot.
    """
    config = import_module("torch._dynamo.config")
    enabled = {"enable_aot_compile": True} if hasattr(config, "enable_aot_compile") else {}
    entry: Any = call.forward if isinstance(call, torch.nn.Module) else call
    restart, state = private.TensorifyScalarRestartAnalysis, private.TensorifyState
    try:
        with config.patch(enabled):
            for _ in range(_MOST_RESTARTS):
                # `torch.compile` traces again if some floats must be constants; `aot_compile` does
                # not. PyTorch remembers which floats these are until its state is cleared.
                with suppress(restart):
                    return entry.aot_compile((tuple(args), dict(kwargs)))
            return entry.aot_compile((tuple(args), dict(kwargs)))
    finally:
        state.clear()


class TracedLines(NamedTuple):
    """Lines of a module that PyTorch traced: from `first` up to, but without, `last`."""

    module: str
    first: int
    last: int
    sha256: str


def packed_function(function: Any) -> tuple[bytes, list[TracedLines], Any]:
    """The bytes of what `aot_compile` made, the lines that it traced, and the compiled graph.

    The bytes have no source code: the lines are stated by their digests.
    """
    artifacts = function._artifacts
    sources = artifacts.source_info.inlined_sources
    lines = [TracedLines(s.module, s.firstlineno, s.lastlineno, s.checksum) for s in sources]
    stripped = type(artifacts.source_info)({replace(s, content="") for s in sources})
    kept, artifacts.source_info = artifacts.source_info, stripped
    try:
        content = type(function).serialize(function).serialized_data
    finally:
        artifacts.source_info = kept
    return content, sorted(lines), artifacts.compiled_fn


def checked_call(function: Any) -> tuple[Callable[..., bool], Callable[..., Any]]:
    """The guards of what `aot_compile` made, and its call without guards."""
    return function.guard_check, function.fn


def failed_guard(function: Any, *args: Any, **kwargs: Any) -> str:
    """Why the guards of what `aot_compile` made do not hold for a call."""
    values = function.prepare_f_locals(*args, **kwargs)
    return str(function._artifacts.guard_manager.check_verbose(values))


def storable_guards(guards: Sequence[Any]) -> list[bool]:
    """For each guard whether PyTorch can store it; packages state what the others would.

    The guards lose the stacks of the code that they come from: a process that loads them would
    write these stacks as text, which takes a quarter of its time for guards.
    """
    refused = set(private.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
    for guard in guards:
        for stack in ("stack", "user_stack"):
            setattr(guard.orig_guard, stack, None)
    return [
        not guard.is_global and not refused & {guard.guard_type, *guard.derived_guard_types}
        for guard in guards
    ]


def marked_ranges(tensor: torch.Tensor) -> dict[int, tuple[int, int | None]]:
    """The ranges of the axes that `mark_dynamic` marked; without one, from 2."""
    axes: set[int] = getattr(tensor, "_dynamo_dynamic_indices", set())
    found: dict[int, tuple[int, int | None]] = dict.fromkeys(axes, (2, None))
    for stated in getattr(tensor, "_dynamo_dynamic_range", ()):
        least = 2 if stated.min is None else max(2, stated.min)  # 0 and 1 are constants
        found[stated.dim] = (least, stated.max)
    return found


def system_text() -> str:
    """The GPU and its software, by which PyTorch decides whether it loads a package."""
    found = private.SystemInfo.current()
    return f"{found.gpu_name}, toolkit {found.toolkit_version}, triton {found.triton_version}"
