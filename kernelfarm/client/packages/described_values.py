"""Any value as text, as far as two processes can compare it: names of code, state of objects.

PyTorch cannot store guards on the identity of functions and classes, nor on values of modules. So
the question for a package states what they are.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from kernelfarm.client.packages.plain_values import NOT_PLAIN, text_of

_VERSIONED = frozenset({"torch", "numpy", "kernelfarm", *sys.stdlib_module_names}) - {"__main__"}
_DEPTH = 4
_MAX_ITEMS = 1024
_MAX_CHARS = 400


def is_versioned(module: str | None) -> bool:
    """True for modules whose code the versions of Python, PyTorch and kernelfarm state."""
    return module is not None and module.partition(".")[0] in _VERSIONED


def described(value: Any) -> str:
    """A value as text: a plain value, the name of a function or class, or an object's state.

    Objects of Python's and PyTorch's own classes are stated by their class alone, others by their
    public attributes, to a depth of four.
    """
    text = _text(value, _DEPTH)
    if len(text) <= _MAX_CHARS:
        return text
    return f"{text[:60]}... {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _text(value: Any, depth: int) -> str:  # noqa: PLR0911 -- one line for each kind of value
    plain = text_of(value)
    if plain != NOT_PLAIN:
        return plain
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return f"{type(value).__name__} {value.__module__}:{value.__qualname__}"
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    if isinstance(value, enum.Enum):
        return f"{kind}.{value.name}"
    if isinstance(value, torch.Tensor):
        return f"{kind} {value.dtype} {tuple(value.shape)} {value.device.type}"
    if isinstance(value, torch.nn.Module) or depth == 0:
        return kind
    return _state(value, kind, depth - 1)


def _state(value: Any, kind: str, depth: int) -> str:
    """The state of a container or an object."""
    if isinstance(value, MethodType):
        parts: list[Any] = [value.__func__, value.__self__]
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, list | tuple):
        parts = list(value[:_MAX_ITEMS])
    elif isinstance(value, set | frozenset):
        return _joined(kind, sorted(_text(item, depth) for item in value))
    else:
        return _named_state(value, kind, depth)
    return _joined(kind, (_text(part, depth) for part in parts))


def _named_state(value: Any, kind: str, depth: int) -> str:
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_ITEMS]
    elif is_versioned(type(value).__module__):
        # Operators of PyTorch have a text of their own, wrappers of functions a name.
        name = str(value) if kind.startswith("torch._ops:") else getattr(value, "__name__", "")
        return f"{kind} {name}"
    else:
        state = getattr(value, "__dict__", {})
        public = sorted(name for name in state if not name.startswith("_"))[:_MAX_ITEMS]
        items = [(name, state[name]) for name in public]
    return _joined(kind, (f"{_text(key, depth)}: {_text(item, depth)}" for key, item in items))


def _joined(kind: str, items: Iterable[str]) -> str:
    return f"{kind}({', '.join(items)})"
