"""kernelfarm: a compile farm for AI kernels.

`kernelfarm.compile(model, args, targets=[...])` compiles a model through a farm for any device;
`torch.compile(model, backend="kernelfarm")` does the same for the device that the model runs on;
`kernelfarm.packaged(model)` looks for a package before it traces;
`kernelfarm.hints(text)` states hints for operations of a model;
`kernelfarm.compile_triton(fn, ...)` compiles a Triton kernel of the user alone;
`kernelfarm.compile_tilelang(program, ...)` does so for a tile program of TileLang;
`kernelfarm.tilelang_function(program)` makes a function of it;
`kernelfarm.use_as_inductor_cache()` lets Inductor's remote caches use the farm. All load torch, so
this package imports them on first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelfarm.client.capture.node_hints import hints
    from kernelfarm.client.compile_model import CompiledModel
    from kernelfarm.client.compile_model import compile_model as compile
    from kernelfarm.client.compile_tilelang import CompiledTileProgram, compile_tilelang
    from kernelfarm.client.compile_triton import CompiledTriton, compile_triton
    from kernelfarm.client.drop_in.inductor_cache import use_as_inductor_cache
    from kernelfarm.client.packaged import packaged, prefetch
    from kernelfarm.client.tilelang.function import TileFunction, tilelang_function

__all__ = [
    "CompiledModel",
    "CompiledTileProgram",
    "CompiledTriton",
    "TileFunction",
    "compile",
    "compile_tilelang",
    "compile_triton",
    "hints",
    "packaged",
    "prefetch",
    "tilelang_function",
    "use_as_inductor_cache",
]

_CLIENT_NAMES = {
    "compile": ("compile_model", "compile_model"),
    "CompiledModel": ("compile_model", "CompiledModel"),
    "CompiledTriton": ("compile_triton", "CompiledTriton"),
    "compile_triton": ("compile_triton", "compile_triton"),
    "hints": ("capture.node_hints", "hints"),
    "CompiledTileProgram": ("compile_tilelang", "CompiledTileProgram"),
    "compile_tilelang": ("compile_tilelang", "compile_tilelang"),
    "TileFunction": ("tilelang.function", "TileFunction"),
    "tilelang_function": ("tilelang.function", "tilelang_function"),
    "packaged": ("packaged", "packaged"),
    "prefetch": ("packaged", "prefetch"),
    "use_as_inductor_cache": ("drop_in.inductor_cache", "use_as_inductor_cache"),
}


def autoload() -> None:
    """PyTorch calls it at the end of its own import (the entry points `torch.backends`).

    It is here, and not beside what it calls, because each `import torch` pays for its module.
    """
    if "KERNELFARM_INDUCTOR_CACHE" in os.environ:
        import_module("kernelfarm.client.drop_in.autoload").install_if_stated()


def __getattr__(name: str) -> Any:
    if name not in _CLIENT_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _CLIENT_NAMES[name]
    garbage_collection = import_module("kernelfarm.client.process.garbage_collection")
    with garbage_collection.no_collections():
        return getattr(import_module(f"kernelfarm.client.{module}"), attribute)
