"""Python entries for `examples/warming.yaml`: functions that return a model and its arguments."""

from __future__ import annotations

from typing import Any

from torch import nn

from examples.inference_server.app import TOKENS, Embedder, padded, text_encoder
from examples.model_zoo import MODELS


def zoo(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model of the zoo by name, with example inputs."""
    source = MODELS[name]()
    return source.model, source.args


def embedder() -> tuple[nn.Module, tuple[Any, ...]]:
    """The model of `examples/inference_server`."""
    return Embedder(text_encoder()).eval(), padded(list(range(1, TOKENS)))
