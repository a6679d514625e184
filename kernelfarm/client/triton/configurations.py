"""The configurations of an autotuned Triton kernel: constants and options, as the user states them.

Functions that prune configurations or compute constants from arguments are the user's own code.
They run on the client alone, before this module reads what they gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelfarm.client.triton.kernel_source import KernelSource
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.bounds import MAX_CONFIGURATIONS
from kernelfarm.ir.triton.check_kernel import OPTIONS

Stated = tuple[Mapping[str, Any], Mapping[str, int]]
"""The constants of a configuration, and its options."""


def configurations_of(function: Any, source: KernelSource) -> tuple[Stated, ...]:
    """The configurations of a kernel, in order; one that is not autotuned has an empty one.

    Raises:
        UserKernelError: there are too many.
    """
    configs = getattr(_autotuner(function), "configs", None) or ()
    if len(configs) > MAX_CONFIGURATIONS:
        raise UserKernelError(
            f"user kernel {source.entry} has {len(configs)} configurations; expected at most"
            f" {MAX_CONFIGURATIONS}: leave some out by `prune_configs_by`"
        )
    return tuple(_stated(config, source) for config in configs) or (({}, {}),)


def _autotuner(function: Any) -> Any:
    """The autotuner of a kernel, below heuristics; None if it has none."""
    while function is not None and not hasattr(function, "configs"):
        function = getattr(function, "fn", None)
    return function


def _stated(config: Any, source: KernelSource) -> Stated:
    """A configuration's constants and options; those of AMD are among its constants in Triton."""
    constants = {name: v for name, v in config.kwargs.items() if name in source.params}
    options = {name: v for name, v in config.kwargs.items() if name not in source.params}
    for name in OPTIONS:
        value = getattr(config, name, None)
        if value is not None and not isinstance(value, bool):
            options[name] = value
    return constants, options
