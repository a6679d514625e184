"""Models of public families with layers of real widths, for fast devices.

They have random weights from configs and four layers each, so that they are built in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from examples.model_zoo import FirstResult, WithStaticCache, built
from examples.real_inputs import VOCABULARY, RealInput

LAYERS = 4
TOKENS = 512
CACHED_TOKENS = 1024


def _llama() -> nn.Module:
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}
    more = {"num_key_value_heads": 4, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
    return built("Llama", "ForCausalLM", **sizes, **more)


def _cached(name: str, tokens: int, position: int) -> RealInput:
    model = WithStaticCache(_llama(), CACHED_TOKENS).eval()
    return RealInput(name, model, (_ids(1, tokens), torch.tensor(position)))


def _ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (batch, tokens), generator=_seeded())


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _bert() -> RealInput:
    sizes: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096}
    heads = {"num_attention_heads": 16, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
    names = ("input_ids", "attention_mask")
    model = FirstResult(built("Bert", "Model", **sizes, **heads), "last_hidden_state", names)
    ids = _ids(8, TOKENS)
    mask = torch.ones_like(ids)
    mask[:, -30:] = 0
    return RealInput("bert-large", model.eval(), (ids, mask))


def _vit() -> RealInput:
    sizes: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "image_size": 224}
    more = {"num_attention_heads": 16, "num_hidden_layers": LAYERS, "patch_size": 16}
    model = FirstResult(
        built("ViT", "Model", **sizes, **more), "last_hidden_state", ("pixel_values",)
    )
    return RealInput(
        "vit-large", model.eval(), (torch.randn(16, 3, 224, 224, generator=_seeded()),)
    )


LARGE: dict[str, Callable[[], RealInput]] = {
    "llama-prefill-large": lambda: _cached("llama-prefill-large", TOKENS, 0),
    "llama-decode-large": lambda: _cached("llama-decode-large", 1, TOKENS),
    "bert-large": _bert,
    "vit-large": _vit,
}
"""Models by name, in float32."""
