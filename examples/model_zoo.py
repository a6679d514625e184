"""Small models of public families, with random weights from configs and no downloads.

They have two narrow layers, but the structure of the real models: each is built in a second or two,
and is captured as its large siblings are. Weights are seeded. `model_of` gives each in any type.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from examples.real_inputs import VOCABULARY, RealInput

HIDDEN = 64
LAYERS = 2
HEADS = 4
TOKENS = 32
CACHED_TOKENS = 48
PIXELS = 64


class FirstResult(nn.Module):
    """A transformers model with tensors as arguments and one tensor as result."""

    def __init__(self, model: nn.Module, result: str, names: tuple[str, ...], **options: Any):
        super().__init__()
        self.model, self.result, self.names, self.options = model, result, names, options

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The chosen result of the model, which is called with the tensors by name."""
        named = dict(zip(self.names, tensors, strict=True))
        return getattr(self.model(**named, **self.options), self.result)


class WithStaticCache(nn.Module):
    """A causal language model with a static key-value cache that it changes in place.

    Each call starts at `position` of the cache, so that calls can be repeated.
    """

    def __init__(self, model: nn.Module, tokens: int = CACHED_TOKENS, batch: int = 1) -> None:
        super().__init__()
        from transformers import StaticCache  # noqa: PLC0415 (takes seconds)

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=tokens)
        all_heads = model.config.num_attention_heads
        heads = getattr(model.config, "num_key_value_heads", all_heads)
        width = model.config.hidden_size // all_heads
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
        self.cache.early_initialization(batch, heads, width, dtype, device)
        for number, layer in enumerate(self.cache.layers):
            self.register_buffer(f"keys_{number}", layer.keys.normal_())
            self.register_buffer(f"values_{number}", layer.values.normal_())
            self.register_buffer(f"length_{number}", layer.cumulative_length)

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Shapes: ids: (batch, tokens), position: () -> (batch, tokens, vocabulary)."""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(position)
        return self.model(input_ids=ids, past_key_values=self.cache, use_cache=True).logits

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        """Also changes the type and device of the cache."""
        super()._apply(fn, recurse)
        for number, layer in enumerate(self.cache.layers):
            layer.keys = self.get_buffer(f"keys_{number}")
            layer.values = self.get_buffer(f"values_{number}")
            layer.cumulative_length = self.get_buffer(f"length_{number}")
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        return self


class UNet(nn.Module):
    """A U-Net of two levels: convolutions, GroupNorm, SiLU, nearest upsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = _double_conv(3, width)
        self.down = _double_conv(width, 2 * width)
        self.middle = _double_conv(2 * width, 2 * width)
        self.up = _double_conv(4 * width, width)
        self.leave = nn.Sequential(_double_conv(2 * width, width), nn.Conv2d(width, 3, 1))
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (batch, 3, height, width) -> the same."""
        a = self.enter(x)
        b = self.down(self.pool(a))
        c = self.middle(self.pool(b))
        d = self.up(torch.cat([self.grow(c), b], dim=1))
        return self.leave(torch.cat([self.grow(d), a], dim=1))


class LSTMClassifier(nn.Module):
    """An embedding, an LSTM written out gate by gate, and a linear head."""

    def __init__(self, steps: int = 16) -> None:
        super().__init__()
        self.steps = steps
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Shapes: ids: (batch, steps) -> (batch, 10)."""
        x = self.embed(ids)
        h = c = x.new_zeros(ids.shape[0], HIDDEN)
        for step in range(self.steps):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


def _double_conv(before: int, after: int) -> nn.Sequential:
    layers = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]
    return nn.Sequential(*layers)


def built(family: str, kind: str, **options: Any) -> nn.Module:
    """The transformers model of class `family` + `kind`, from its config, with seeded weights."""
    transformers = import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**options)
    return getattr(transformers, f"{family}{kind}")(config).eval()


def _ids(tokens: int = TOKENS) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(2, VOCABULARY, (1, tokens))


def _image() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(1, 3, PIXELS, PIXELS)


def _transformer(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": VOCABULARY,
        **more,
    }


def _encoder(family: str, **more: Any) -> RealInput:
    """A text encoder with a padding mask."""
    model = built(family, "Model", **_transformer(intermediate_size=4 * HIDDEN, **more))
    ids = _ids()
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    wrapped = FirstResult(model, "last_hidden_state", ("input_ids", "attention_mask"))
    return RealInput(family.lower(), wrapped.eval(), (ids, mask))


def _decoder(family: str, **more: Any) -> RealInput:
    """A causal language model without a cache."""
    model = built(family, "ForCausalLM", **_transformer(**more))
    wrapped = FirstResult(model, "logits", ("input_ids",), use_cache=False)
    return RealInput(family.lower(), wrapped.eval(), (_ids(),))


def _llama_model() -> nn.Module:
    sizes = {"intermediate_size": 172, "num_key_value_heads": 2}
    return built("Llama", "ForCausalLM", **_transformer(**sizes))


def _llama_cached(name: str, tokens: int, position: int) -> RealInput:
    model = WithStaticCache(_llama_model()).eval()
    return RealInput(name, model, (_ids(tokens), torch.tensor(position)))


def _opt() -> RealInput:
    return _decoder("OPT", ffn_dim=4 * HIDDEN, word_embed_proj_dim=HIDDEN)


def _t5() -> nn.Module:
    sizes = {"d_model": HIDDEN, "d_kv": 16, "d_ff": 4 * HIDDEN, "num_layers": LAYERS}
    return built("T5", "Model", vocab_size=VOCABULARY, num_heads=HEADS, **sizes)


def _t5_encoder() -> RealInput:
    model = FirstResult(_t5().encoder, "last_hidden_state", ("input_ids",))
    return RealInput("t5-encoder", model.eval(), (_ids(),))


def _t5_decoder() -> RealInput:
    names = ("input_ids", "encoder_hidden_states")
    model = FirstResult(_t5().decoder, "last_hidden_state", names, use_cache=False)
    torch.manual_seed(2)
    return RealInput("t5-decoder", model.eval(), (_ids(16), torch.randn(1, TOKENS, HIDDEN)))


def _vision_transformer(family: str, result: str = "last_hidden_state") -> RealInput:
    sizes = {"image_size": PIXELS, "patch_size": 16, "intermediate_size": 4 * HIDDEN}
    sizes |= {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    if family == "Dinov2":
        sizes.pop("intermediate_size")
    model = FirstResult(built(family, "Model", **sizes), result, ("pixel_values",))
    return RealInput(family.lower(), model.eval(), (_image(),))


def _convnet(family: str, **sizes: Any) -> RealInput:
    model = built(family, "ForImageClassification", **sizes)
    torch.manual_seed(2)
    for module in model.modules():  # statistics as after training, instead of zeros and ones
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return RealInput(
        family.lower(), FirstResult(model, "logits", ("pixel_values",)).eval(), (_image(),)
    )


def _resnet() -> RealInput:
    return _convnet(
        "ResNet", embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[1, 2, 1, 1]
    )


def _efficientnet() -> RealInput:
    return _convnet("EfficientNet", width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640)


def _regnet() -> RealInput:
    sizes = {"embedding_size": 16, "hidden_sizes": [32, 64, 96, 128], "depths": [1, 2, 1, 1]}
    return _convnet("RegNet", groups_width=16, **sizes)


def _unet() -> RealInput:
    torch.manual_seed(0)
    return RealInput("unet", UNet().eval(), (_image(),))


def _lstm() -> RealInput:
    torch.manual_seed(0)
    return RealInput("lstm", LSTMClassifier().eval(), (_ids(16).repeat(4, 1),))


MODELS: dict[str, Callable[[], RealInput]] = {
    "bert": lambda: _encoder("Bert"),
    "roberta": lambda: _encoder("Roberta", pad_token_id=1),
    "electra": lambda: _encoder("Electra", embedding_size=HIDDEN // 2),
    "albert": lambda: _encoder("Albert", embedding_size=HIDDEN // 2),
    "opt": _opt,
    "llama": lambda: _decoder("Llama", intermediate_size=172, num_key_value_heads=2),
    "llama-prefill": lambda: _llama_cached("llama-prefill", TOKENS, 0),
    "llama-decode": lambda: _llama_cached("llama-decode", 1, TOKENS),
    "phi": lambda: _decoder("Phi", intermediate_size=4 * HIDDEN),
    "falcon": lambda: _decoder("Falcon", new_decoder_architecture=False, multi_query=True),
    "t5-encoder": _t5_encoder,
    "t5-decoder": _t5_decoder,
    "vit": lambda: _vision_transformer("ViT"),
    "deit": lambda: _vision_transformer("DeiT"),
    "dinov2": lambda: _vision_transformer("Dinov2"),
    "resnet": _resnet,
    "efficientnet": _efficientnet,
    "regnet": _regnet,
    "unet": _unet,
    "lstm": _lstm,
}
"""Models by name, in float32."""


def model_of(name: str, dtype: torch.dtype) -> RealInput:
    """A model with weights and floating-point inputs of a type."""
    source = MODELS[name]()
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in source.args)
    return RealInput(name, source.model.to(dtype), args)
