"""kernelfarm: a compile farm for AI kernels.

`kernelfarm.compile(model, args, targets=[...])` compiles a model through a farm for any device;
`torch.compile(model, backend="kernelfarm")` does the same for the device that the model runs on.
Both load torch, so this package imports them on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelfarm.client.compile_model import CompiledModel
    from kernelfarm.client.compile_model import compile_model as compile

__all__ = ["CompiledModel", "compile"]

_CLIENT_NAMES = {"compile": "compile_model", "CompiledModel": "CompiledModel"}


def __getattr__(name: str) -> Any:
    if name not in _CLIENT_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("kernelfarm.client.compile_model"), _CLIENT_NAMES[name])
