"""What Dynamo and AOT Autograd note on graphs, tensors and functions, and how they trace."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from kernelfarm.client.pytorch import private

if TYPE_CHECKING:
    from torch import fx


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that is equal for tensors with the same storage; fake tensors have one, too."""
    return int(tensor.untyped_storage()._cdata)


def copy_source(node: fx.Node, copy: fx.Node) -> None:
    """Copies what Dynamo recorded about the source of an input, which AOT Autograd reads."""
    copy._dynamo_source = getattr(node, "_dynamo_source", None)


def is_static_input(placeholder: fx.Node) -> bool:
    """True for a Dynamo graph's input that keeps its memory, such as a parameter or a buffer."""
    facts = placeholder.meta.get("tensor_dict", {})
    return facts.get("_dynamo_static_input_type") is not None


def is_parameter_or_buffer(placeholder: fx.Node) -> bool:
    """True for a Dynamo graph's input that is a parameter or a buffer of a module."""
    facts = placeholder.meta.get("tensor_dict", {})
    return bool(facts.get("_dynamo_static_input_type") == "unguarded")


def traces_in_other_ways() -> bool:
    """True if settings of PyTorch change what AOT Autograd traces."""
    config = import_module("torch._functorch.config")
    return bool(config.functionalize_rng_ops or config.fake_tensor_propagate_real_tensors)


def read_layout(tensor: torch.Tensor) -> None:
    """Reads of a layout what AOT Autograd reads as it wraps a value; it may add guards on sizes."""
    tensors: Any = torch.Tensor
    tensors._make_wrapper_subclass(  # its overload for symbolic sizes takes positions only
        private.FakeTensor,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        None,
        tensor.dtype,
        tensor.layout,
        tensor.device,
        False,
    )


def is_exporting() -> bool:
    """True while `torch.export` runs, also in code that Dynamo traces."""
    return torch.compiler._is_exporting_flag


def mark_boxed(function: Callable[[list[Any]], Any]) -> None:
    """Marks a function that takes a list of arguments and clears it, for AOT Autograd."""
    function._boxed_call = True  # type: ignore[attr-defined] # functions have no declared attributes
