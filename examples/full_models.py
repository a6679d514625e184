"""Models of public families with their published depth and width, for benchmarks of starts.

They have random weights from default configs, without downloads; each is built in a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from examples.model_zoo import FirstResult, built
from examples.real_inputs import RealInput

TOKENS = 64
PIXELS = 224


def _ids(vocabulary: int, tokens: int = TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, vocabulary, (1, tokens), generator=generator)


def _image() -> torch.Tensor:
    return torch.randn(1, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(1))


def _gpt2() -> RealInput:
    """124 million parameters: 12 layers of 768."""
    model = built("GPT2", "LMHeadModel")
    wrapped = FirstResult(model, "logits", ("input_ids",), use_cache=False)
    return RealInput("gpt2", wrapped.eval(), (_ids(50257),))


def _bert() -> RealInput:
    """BERT-base: 12 layers of 768."""
    ids = _ids(30522)
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    names = ("input_ids", "attention_mask")
    model = FirstResult(built("Bert", "Model"), "last_hidden_state", names)
    return RealInput("bert-base", model.eval(), (ids, mask))


def _clip() -> RealInput:
    """CLIP ViT-B/32: 12 layers of 512 for text, 12 of 768 for images."""
    names = ("input_ids", "pixel_values")
    model = FirstResult(built("CLIP", "Model"), "logits_per_image", names)
    return RealInput("clip", model.eval(), (_ids(49000, 16), _image()))


def _vision(name: str, family: str, kind: str, result: str, **options: Any) -> RealInput:
    model = FirstResult(built(family, kind, **options), result, ("pixel_values",))
    return RealInput(name, model.eval(), (_image(),))


def _llama(name: str, *, dynamic: bool | None = None, is_marked: bool = False) -> RealInput:
    """Llama 2 of 7 billion parameters: 32 layers of 4096, whose weights share one layer's memory.

    Starts depend on the number of layers and on the sizes of weights, but not on their memory. If
    it `is_marked`, its layers are nested compile regions.
    """
    config = import_module("transformers").LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=32000,
        use_cache=False,
    )
    with torch.device("meta"):
        model = import_module("transformers").LlamaForCausalLM(config)
    first = model.model.layers[0].to_empty(device="cpu")
    for parameter in first.parameters():
        nn.init.normal_(parameter, std=0.02)
    for layer in model.model.layers[1:]:
        for path, parameter in first.named_parameters():
            owner, _, attribute = path.rpartition(".")
            setattr(layer.get_submodule(owner), attribute, nn.Parameter(parameter.detach()))
    for part in (model.model.embed_tokens, model.model.norm, model.lm_head):
        part.to_empty(device="cpu")
        nn.init.normal_(part.weight, std=0.02)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if is_marked:
        plain = type(first)
        region = torch.compiler.nested_compile_region(plain.forward)
        marked = type("MarkedLayer", (plain,), {"forward": region})
        for layer in model.model.layers:
            layer.__class__ = marked
    wrapped = FirstResult(model, "logits", ("input_ids",))
    return RealInput(name, wrapped.eval(), (_ids(32000, 16),), dynamic)


FULL: dict[str, Callable[[], RealInput]] = {
    "gpt2": _gpt2,
    "bert-base": _bert,
    "clip": _clip,
    "vit-base": lambda: _vision("vit-base", "ViT", "Model", "last_hidden_state"),
    "mobilenet-v2": lambda: _vision(
        "mobilenet-v2", "MobileNetV2", "ForImageClassification", "logits"
    ),
    "resnet-50": lambda: _vision("resnet-50", "ResNet", "ForImageClassification", "logits"),
}
"""Models by name, in float32."""

DEEP: dict[str, Callable[[], RealInput]] = {
    "llama-7b": lambda: _llama("llama-7b"),
    "llama-7b-marked": lambda: _llama("llama-7b-marked", is_marked=True),
    "llama-7b-dynamic": lambda: _llama("llama-7b-dynamic", dynamic=True),
}
"""Models of 32 layers by name, in float32."""
