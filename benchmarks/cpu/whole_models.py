"""Whole models as users run them on CPUs, with random weights, and their arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from examples.detector import Detector
from examples.integer_weights import with_integer_weights
from examples.mobile_net import MobileNet
from examples.model_zoo import FirstResult, WithStaticCache, built

PIXELS = 224
DETECTOR_PIXELS = 320
TOKENS = 128
VOCABULARY = 30522
CACHED = 512

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]
"""A model, and its arguments in the default type."""


def _images(family: str, batch: int, **options: Any) -> Built:
    model = built(family, "ForImageClassification", **options)
    return FirstResult(model, "logits", ("pixel_values",)), _image_args(batch)


def _mobile_net(batch: int) -> Built:
    return MobileNet(), _image_args(batch)


def _detector(batch: int) -> Built:
    return Detector(), _image_args(batch, DETECTOR_PIXELS)


def _image_args(batch: int, pixels: int = PIXELS) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, pixels, pixels),)


def _bert(batch: int) -> Built:
    model = FirstResult(built("Bert", "Model"), "last_hidden_state", ("input_ids",))
    return model, (torch.randint(2, VOCABULARY, (batch, TOKENS)),)


def _gpt2(batch: int, *, tokens: int, position: int) -> Built:
    return _cached(built("GPT2", "LMHeadModel", n_layer=6), batch, tokens, position)


def _llama(batch: int, *, tokens: int, position: int) -> Built:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32000}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 4}
    return _cached(built("Llama", "ForCausalLM", **sizes, **heads), batch, tokens, position)


def _cached(model: nn.Module, batch: int, tokens: int, position: int) -> Built:
    ids = torch.randint(2, VOCABULARY, (batch, tokens))
    return WithStaticCache(model, CACHED, batch), (ids, torch.tensor(position))


_SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
_PREFILL, _DECODE = {"tokens": TOKENS, "position": 0}, {"tokens": 1, "position": TOKENS}

MODELS: dict[str, Callable[[int], Built]] = {
    "bert-base": _bert,
    "gpt2-6-prefill": partial(_gpt2, **_PREFILL),
    "gpt2-6-decode": partial(_gpt2, **_DECODE),
    "llama-4-prefill": partial(_llama, **_PREFILL),
    "llama-4-decode": partial(_llama, **_DECODE),
    "resnet-50": partial(_images, "ResNet"),
    "mobilenet-v3": _mobile_net,
    "convnext-tiny": partial(_images, "ConvNext"),
    "vit-small": partial(_images, "ViT", **_SMALL),
    "swin-tiny": partial(_images, "Swin"),
    "detector": _detector,
}
"""By name; the argument is the batch."""


def _with_integers(name: str, bits: int, batch: int) -> Built:
    model, args = MODELS[name](batch)
    return with_integer_weights(model, bits), args


INTEGER_MODELS: dict[str, Callable[[int], Built]] = {
    f"{name}-int{bits}": partial(_with_integers, name, bits)
    for name in ("llama-4-prefill", "llama-4-decode")
    for bits in (8, 4)
}
"""Models with weights of integers, which run if they are named."""


def seeded(name: str, batch: int, dtype: torch.dtype) -> Built:
    """A model, whose batch norms have statistics as after training, and its arguments."""
    torch.manual_seed(0)
    model, args = (MODELS | INTEGER_MODELS)[name](batch)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.1)
    typed = tuple(arg.to(dtype) if arg.is_floating_point() else arg for arg in args)
    return model.eval().to(dtype), typed
