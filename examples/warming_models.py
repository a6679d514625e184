"""Python entries for `examples/warming.yaml`: functions that return a model and its arguments."""

from __future__ import annotations

from typing import Any

from torch import nn

from examples.model_zoo import MODELS


def zoo(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model of the zoo by name, with example inputs."""
    source = MODELS[name]()
    return source.model, source.args
