"""Models of published widths with few layers and small batches, for training steps on a CPU.

They have random weights from configs. Their tensors are as wide as those of the real models, so
that the memory of a step is divided as theirs: saved activations, logits, gradients of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from examples.large_models import WithLoss
from examples.model_zoo import FirstResult, UNet, built
from examples.real_inputs import VOCABULARY, RealInput

LAYERS = 4
TOKENS = 512


def _gpt2() -> RealInput:
    vocabulary = 50304
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = built("GPT2", "LMHeadModel", n_layer=LAYERS, vocab_size=vocabulary, **no_dropout)
    return RealInput("gpt2-shallow", WithLoss(model), (_ids(1, TOKENS, vocabulary),))


def _llama() -> RealInput:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32000}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": LAYERS}
    model = built("Llama", "ForCausalLM", **sizes, **heads)
    return RealInput("llama-shallow", WithLoss(model), (_ids(1, TOKENS, 32000),))


def _bert() -> RealInput:
    """With dropout, as BERT is trained."""
    model = built("Bert", "Model", num_hidden_layers=LAYERS, vocab_size=VOCABULARY)
    ids = _ids(4, 128, VOCABULARY)
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    named = FirstResult(model, "last_hidden_state", ("input_ids", "attention_mask"))
    return RealInput("bert-shallow", named, (ids, mask))


def _vit() -> RealInput:
    model = built("ViT", "Model", num_hidden_layers=LAYERS)
    named = FirstResult(model, "last_hidden_state", ("pixel_values",))
    return RealInput("vit-shallow", named, (_images(2, 224),))


def _resnet() -> RealInput:
    sizes: dict[str, Any] = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
    model = built("ResNet", "ForImageClassification", layer_type="basic", **sizes)
    named = FirstResult(model, "logits", ("pixel_values",))
    return RealInput("resnet-18", named, (_images(8, 64),))


def _unet() -> RealInput:
    torch.manual_seed(0)
    return RealInput("unet-wide", UNet(64).eval(), (_images(2, 64),))


def _ids(batch: int, tokens: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(2, vocabulary, (batch, tokens), generator=_seeded())


def _images(batch: int, pixels: int) -> torch.Tensor:
    return torch.randn(batch, 3, pixels, pixels, generator=_seeded())


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


SHALLOW: dict[str, Callable[[], RealInput]] = {
    "gpt2-shallow": _gpt2,
    "llama-shallow": _llama,
    "bert-shallow": _bert,
    "vit-shallow": _vit,
    "resnet-18": _resnet,
    "unet-wide": _unet,
}
"""Models by name, in float32; the language models return their loss."""
