"""Inductor's recordings of calls, and its remote caches."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from kernelfarm.client.pytorch import private


def can_record_in_this_thread() -> bool:
    """True if CUDA graph trees work in the calling thread; before 2.13 only where they began."""
    trees = private.module_of_torch("torch._inductor.cudagraph_trees")
    if hasattr(trees, "_initialize_tls"):
        return True
    own = "tree_manager_containers"
    return hasattr(trees.local, own) or torch._C._is_key_in_tls(own)


def inductor_remote_caches() -> dict[str, Any]:
    """The classes of Inductor's remote caches whose values do not change, by PyTorch's short names.

    Their attribute `backend_override_cls` makes the store.
    """
    names = ("FxGraph", "AOTAutograd", "Autotune", "BundledAutotune")
    return {name: getattr(private, f"Remote{name}Cache") for name in names}


def turn_on_remote_caches() -> None:
    """Turns on Inductor's remote caches of graphs and of autotuning, unless a setting is stated."""
    config = import_module("torch._inductor.config")
    for name in ("fx_graph_remote_cache", "autotune_remote_cache"):
        if getattr(config, name) is None:
            setattr(config, name, True)
