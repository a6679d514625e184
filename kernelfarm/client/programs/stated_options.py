"""The options with which users call `torch.compile` and `kernelfarm.packaged`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.pytorch.deterministic import is_determinism_wanted
from kernelfarm.client.settings import Mode
from kernelfarm.errors import CallerError
from kernelfarm.ir.product_choice import ProductChoice

REDUCE_OVERHEAD = "reduce-overhead"
"""The name that torch gives to the mode in which calls are replays of CUDA graphs."""

_SETTINGS = (
    "endpoint",
    "timeout_s",
    "model",
    "mode",
    "cuda_graphs",
    "autotune",
    "autotune_limit_s",
)
"""The settings that are options, too."""

TUNED = "tuned"
"""Who computes a product is decided by the times that clients of the farm measure."""


def with_mode(options: Mapping[str, Any] | None, mode: str | None) -> dict[str, Any]:
    """The options with what the argument `mode` states.

    Raises:
        CallerError: there is no such mode.
    """
    stated = dict(options or {})
    if mode == REDUCE_OVERHEAD:
        return {**stated, "cuda_graphs": True}
    if mode is None:
        return stated
    if mode not in get_args(Mode):
        expected = ", ".join((*get_args(Mode), REDUCE_OVERHEAD))
        raise CallerError(f"mode {mode!r}; expected one of {expected}")
    return {**stated, "mode": mode}


def stated_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among the options."""
    known = {*_SETTINGS, "strict", "deterministic", "fallback_random", "products", "freezing"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise CallerError(f"options {unknown}; expected some of {sorted(known)}")
    stated = {key: options[key] for key in _SETTINGS if key in options}
    if "strict" in options:
        stated["mode"] = "strict" if options["strict"] else "wait"
    return stated


def is_frozen(options: Mapping[str, Any]) -> bool:
    """True if the options state that parameters and buffers do not change.

    Raises:
        CallerError: `freezing` is neither true nor false.
    """
    stated = options.get("freezing", False)
    if not isinstance(stated, bool):
        raise CallerError(f"freezing {stated!r}; expected True or False")
    return stated


def is_tuned(options: Mapping[str, Any]) -> bool:
    """True if the options leave the choice for each product to the fleet."""
    return bool(options.get("products") == TUNED)


def check_fits_packages(options: Mapping[str, Any], otherwise: str) -> None:
    """Checks that programs with these options may be stored in packages.

    Raises:
        CallerError: they may not; the message names what `otherwise` to do.
    """
    if is_frozen(options):
        raise CallerError(
            "freezing: a package cannot hold what is computed from parameters; expected a model"
            f" without `freezing`, or {otherwise}"
        )
    if is_tuned(options):
        raise CallerError(
            "products 'tuned': a package cannot hold what the fleet chooses later; expected another"
            f" value of `products`, or {otherwise}"
        )


def compile_options(options: Mapping[str, Any]) -> CompileOptions:
    """The options of the compilation among the options; the fleet's choices are added later.

    Without `deterministic`, programs are if PyTorch's own flag is set.

    Raises:
        CallerError: `products` is no `ProductChoice` and not `tuned`.
    """
    stated = options.get("products", ProductChoice.AUTO.value)
    choices = {choice.value: choice for choice in ProductChoice} | {TUNED: ProductChoice.AUTO}
    if stated not in list(choices):
        raise CallerError(f"products {stated!r}; expected one of {', '.join(choices)}")
    is_deterministic = options.get("deterministic")
    if is_deterministic is None:
        is_deterministic = is_determinism_wanted()
    return CompileOptions(
        is_deterministic=bool(is_deterministic),
        fallback_random=bool(options.get("fallback_random", False)),
        products=choices[stated],
    )
