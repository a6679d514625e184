"""Triton's passes over its GPU dialect: with the settings that a kernel states, and one by one.

A vendor's `make_ttgir` adds passes to a manager and runs it. Here it runs with other names in place
of some of its module's: settings of the kernel, and a manager that keeps the text after each pass.
Nothing of the process changes, so other compilations do not see it.
"""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

AMD_SETTINGS = ("use_async_copy", "use_block_pingpong", "use_buffer_ops")
"""Settings of Triton's AMD backend that are variables of the environment, no options."""
SHOW_PASSES = "show_passes"
"""The option that artifacts have the text of each pass."""
_PREFIX = "ttgir."


@dataclass(slots=True)
class PassTexts:
    """The module's text before the first pass, and after each one, in order."""

    texts: list[tuple[str, str]] = field(default_factory=list)

    def stages(self) -> dict[str, str]:
        """What each pass changed, by stages' names: all lines, with marks of old and new ones.

        A pass that ran several times has a number behind its name. Those that changed nothing are
        left out.
        """
        found: dict[str, str] = {}
        runs: Counter[str] = Counter()
        for (_, before), (name, after) in zip(self.texts, self.texts[1:], strict=False):
            runs[name] += 1
            if before != after:
                number = f".{runs[name]}" if runs[name] > 1 else ""
                found[f"{_PREFIX}{name}{number}"] = _compared(before, after)
        return found


def ttgir_stage(
    backend: Any, options: Any, settings: Mapping[str, bool], shown: PassTexts | None
) -> Callable[[Any, dict[str, Any]], Any]:
    """The stage `ttgir` of a backend of Triton, with settings; `shown` gets the passes' texts."""
    module = sys.modules[type(backend).__module__]
    names = _names(module, settings, shown)
    make = names["make_ttgir"] = _with_names(vars(type(backend))["make_ttgir"].__func__, names)
    more = (backend._parse_arch(options.arch),) if hasattr(backend, "_parse_arch") else ()

    def run(source: Any, facts: dict[str, Any]) -> Any:
        if hasattr(module, "amd"):
            facts["settings"] = _amd_settings(names, options)
        if shown is not None:
            shown.texts.append(("", source.str_nodebug()))
        return make(source, facts, options, *more)

    return run


def _names(
    module: ModuleType, settings: Mapping[str, bool], shown: PassTexts | None
) -> dict[str, Any]:
    """The module's names with its own functions bound to them, so that these see the changes."""
    names = dict(vars(module))
    if settings:
        amd = _Changed(module.knobs.amd, settings)
        names["knobs"] = _Changed(module.knobs, {"amd": amd})
    if shown is not None:
        real = module.ir.pass_manager
        manager = {"pass_manager": lambda context: _Manager(real, context, shown)}
        names["ir"] = _Changed(module.ir, manager)
        for vendor in ("passes", "amd", "nvidia"):
            if vendor in names:
                names[vendor] = _Adders(names[vendor])
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            names[name] = _with_names(value, names)
    return names


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


def _amd_settings(names: Mapping[str, Any], options: Any) -> dict[str, bool]:
    """The settings of a compilation for AMD, also those that nobody stated."""
    copies = bool(names["is_async_copy_enabled"](options.base_arch))
    return {
        "use_async_copy": copies,
        "use_block_pingpong": bool(names["is_pingpong_schedule_enabled"](options.arch, copies)),
        "use_buffer_ops": bool(names["knobs"].amd.use_buffer_ops),
    }


class _Changed:
    """An object with some other attributes."""

    def __init__(self, real: Any, changed: Mapping[str, Any]) -> None:
        self._real, self._changed = real, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._real, name)


class _Adders:
    """A module of functions that add a pass to a manager."""

    def __init__(self, real: ModuleType) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if isinstance(value, ModuleType):
            return _Adders(value)
        if not name.startswith("add_"):
            return value
        return lambda manager, *arguments: manager.add(name.removeprefix("add_"), value, arguments)


class _Manager:
    """Takes the place of MLIR's manager: each pass has one of its own."""

    def __init__(self, real: Callable[[Any], Any], context: Any, shown: PassTexts) -> None:
        self._real, self._context, self._shown = real, context, shown
        self._steps: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = []

    def enable_debug(self) -> bool:
        return False

    def add(self, name: str, adder: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._steps.append((name, adder, arguments))

    def run(self, module: Any, name: str) -> None:
        for label, adder, arguments in self._steps:
            manager = self._real(self._context)
            adder(manager, *arguments)
            manager.run(module, name)
            self._shown.texts.append((label, module.str_nodebug()))


def _compared(before: str, after: str) -> str:
    old, new = before.splitlines(), after.splitlines()
    lines = difflib.unified_diff(
        old, new, "before", "after", lineterm="", n=max(len(old), len(new))
    )
    return "\n".join(lines) + "\n"
