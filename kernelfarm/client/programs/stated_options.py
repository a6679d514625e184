"""The options with which users call `torch.compile` and `kernelfarm.packaged`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.errors import CallerError


def stated_settings(options: Mapping[str, Any], mode: str | None) -> dict[str, Any]:
    """The settings among the options."""
    known = {"endpoint", "timeout_s", "model", "mode", "strict"}
    known |= {"deterministic", "fallback_random"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise CallerError(f"options {unknown}; expected some of {sorted(known)}")
    stated = {
        key: options[key] for key in ("endpoint", "timeout_s", "model", "mode") if key in options
    }
    if "strict" in options:
        stated["mode"] = "strict" if options["strict"] else "wait"
    if mode is not None:
        stated["mode"] = mode
    return stated


def compile_options(options: Mapping[str, Any]) -> CompileOptions:
    """The options of the compilation among the options."""
    return CompileOptions(
        is_deterministic=bool(options.get("deterministic", False)),
        fallback_random=bool(options.get("fallback_random", False)),
    )
