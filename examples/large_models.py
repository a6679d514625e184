"""Models of public families with layers of real widths, for fast devices.

They have random weights from configs, in the default type and on the default device of PyTorch.
Convolutional networks have all their layers. Transformers have four equal layers of the published
width, except GPT-2, which has its twelve: their time grows with the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from examples.diffusion_unet import DiffusionUNet
from examples.integer_weights import with_integer_weights
from examples.model_zoo import FirstResult, WithStaticCache, built
from examples.real_inputs import VOCABULARY, RealInput

LAYERS = 4
TOKENS = 512
CACHED_TOKENS = 1024
LONG_CACHE = 16384
IMAGES = 32
PIXELS = 224
CLASSES = 1000
_BERT_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
}
_EFFICIENTNET_B0: dict[str, Any] = {
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "hidden_dim": 1280,
}
_VIT_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "image_size": PIXELS,
    "patch_size": 16,
    "num_attention_heads": 16,
    "num_hidden_layers": LAYERS,
}


class WithLoss(nn.Module):
    """A causal language model with the loss of predicting each next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Shapes: ids: (batch, tokens) -> ()."""
        logits = self.model(input_ids=ids, use_cache=False).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _llama(**sizes: int) -> nn.Module:
    return built("Llama", "ForCausalLM", num_hidden_layers=LAYERS, **sizes)


def _llama_of_2048() -> nn.Module:
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "vocab_size": VOCABULARY}
    return _llama(num_attention_heads=16, num_key_value_heads=4, **sizes)


def _llama_of_4096() -> nn.Module:
    """The widths of Llama 3 8B."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000}
    return _llama(num_attention_heads=32, num_key_value_heads=8, **sizes)


def _cached(model: nn.Module, name: str, batch: int, tokens: int, position: int) -> RealInput:
    cached = max(CACHED_TOKENS, position + tokens)
    module = WithStaticCache(model, cached, batch).eval()
    at = torch.tensor(position, device=torch.get_default_device())
    return RealInput(name, module, (_ids(batch, tokens), at))


def _llama_of_integers(batch: int) -> RealInput:
    """A decoding step by weights of four bits, with scales of 128 terms."""
    model = with_integer_weights(_llama_of_4096(), 4)
    return _cached(model, f"llama-8b-decode-{batch}-int4", batch, 1, TOKENS)


def _ids(batch: int, tokens: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    found = torch.randint(2, vocabulary, (batch, tokens), generator=_seeded(), device="cpu")
    return found.to(torch.get_default_device())


def _images(batch: int = IMAGES) -> torch.Tensor:
    shape = (batch, 3, PIXELS, PIXELS)
    found = torch.randn(shape, generator=_seeded(), device="cpu", dtype=torch.float32)
    return found.to(torch.get_default_device(), torch.get_default_dtype())


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _bert() -> RealInput:
    names = ("input_ids", "attention_mask")
    model = FirstResult(built("Bert", "Model", **_BERT_LARGE), "last_hidden_state", names)
    return RealInput("bert-large", model.eval(), _texts())


def _texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their mask, which leaves out the last 30. Shapes: (8, TOKENS) each."""
    ids = _ids(8, TOKENS)
    mask = torch.ones_like(ids)
    mask[:, -30:] = 0
    return ids, mask


def _bert_training() -> RealInput:
    """Without dropout, so that its gradients can be compared with exact ones."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = built("Bert", "ForMaskedLM", **_BERT_LARGE, **no_dropout)
    return RealInput("bert-large-training", WithMaskedLoss(model).train(), _texts())


def _vit() -> RealInput:
    model = FirstResult(built("ViT", "Model", **_VIT_LARGE), "last_hidden_state", ("pixel_values",))
    return RealInput("vit-large", model.eval(), (_images(16),))


class WithMaskedLoss(nn.Module):
    """A masked language model with the loss of predicting every token that it sees."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Shapes: ids, mask: (batch, tokens) -> ()."""
        logits = self.model(input_ids=ids, attention_mask=mask).logits
        classes = torch.where(mask == 1, ids, -100)  # -100: cross-entropy leaves it out
        return functional.cross_entropy(logits.flatten(0, 1), classes.flatten())


class WithClassLoss(nn.Module):
    """A classifier of images with the loss of predicting their classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Shapes: pixels: (batch, 3, height, width), classes: (batch,) -> ()."""
        return functional.cross_entropy(self.model(pixel_values=pixels).logits, classes)


def _classifier_training(name: str, family: str, **sizes: Any) -> RealInput:
    model = built(family, "ForImageClassification", num_labels=CLASSES, **sizes)
    images = _images()
    classes = torch.randint(0, CLASSES, images.shape[:1], generator=_seeded(), device="cpu")
    module = WithClassLoss(model).train()
    return RealInput(name, module, (images, classes.to(images.device)))


def _convnet(name: str, family: str, *, is_channels_last: bool = False, **sizes: Any) -> RealInput:
    model = built(family, "ForImageClassification", **sizes)
    for module in model.modules():  # statistics as after training, instead of zeros and ones
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    images = _images()
    if is_channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    return RealInput(name, FirstResult(model, "logits", ("pixel_values",)).eval(), (images,))


class WithSquaredError(nn.Module):
    """A denoising model with the loss of predicting the noise."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, noise: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        """Shapes: noise: (batch, channels, height, width), and the model's arguments -> ()."""
        return functional.mse_loss(self.model(*args), noise)


def _unet_training() -> RealInput:
    source = _unet()
    noise = torch.randn_like(source.args[0])
    module = WithSquaredError(source.model).train()
    return RealInput("diffusion-unet-training", module, (noise, *source.args))


def _unet() -> RealInput:
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    torch.manual_seed(0)
    model = DiffusionUNet().eval()
    latents = torch.randn(2, 4, 64, 64, device=device, dtype=dtype)
    steps = torch.tensor([500, 500], device=device)
    text = torch.randn(2, 77, 768, device=device, dtype=dtype)
    return RealInput("diffusion-unet", model, (latents, steps, text))


def _gpt2(layers: int = 12) -> nn.Module:
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return built("GPT2", "LMHeadModel", n_layer=layers, **no_dropout)


def _gpt2_training() -> RealInput:
    return RealInput("gpt2-training", WithLoss(_gpt2()).train(), (_ids(8, 1024, 50257),))


def _llama_training() -> RealInput:
    return RealInput(
        "llama-training", WithLoss(_llama_of_2048()).train(), (_ids(4, 1024, VOCABULARY),)
    )


LARGE: dict[str, Callable[[], RealInput]] = {
    "llama-prefill-large": lambda: _cached(_llama_of_2048(), "llama-prefill-large", 1, TOKENS, 0),
    "llama-decode-large": lambda: _cached(_llama_of_2048(), "llama-decode-large", 1, 1, TOKENS),
    "llama-8b-prefill": lambda: _cached(_llama_of_4096(), "llama-8b-prefill", 1, 2048, 0),
    "llama-8b-decode-1": lambda: _cached(_llama_of_4096(), "llama-8b-decode-1", 1, 1, TOKENS),
    "llama-8b-decode-8": lambda: _cached(_llama_of_4096(), "llama-8b-decode-8", 8, 1, TOKENS),
    "llama-8b-decode-64": lambda: _cached(_llama_of_4096(), "llama-8b-decode-64", 64, 1, TOKENS),
    "llama-8b-decode-16k": lambda: _cached(
        _llama_of_4096(), "llama-8b-decode-16k", 1, 1, LONG_CACHE - 1
    ),
    **{f"llama-8b-decode-{batch}-int4": partial(_llama_of_integers, batch) for batch in (1, 8, 32)},
    "bert-large": _bert,
    "vit-large": _vit,
    "resnet-50": lambda: _convnet("resnet-50", "ResNet"),
    "resnet-50-channels-last": lambda: _convnet(
        "resnet-50-channels-last", "ResNet", is_channels_last=True
    ),
    "convnext-tiny": lambda: _convnet("convnext-tiny", "ConvNext"),
    "efficientnet-b0": lambda: _convnet("efficientnet-b0", "EfficientNet", **_EFFICIENTNET_B0),
    "swin-tiny": lambda: _convnet("swin-tiny", "Swin"),
    "diffusion-unet": _unet,
}
"""Inference by name."""

TRAINED: dict[str, Callable[[], RealInput]] = {
    "resnet-50-training": lambda: _classifier_training("resnet-50-training", "ResNet"),
    "convnext-tiny-training": lambda: _classifier_training("convnext-tiny-training", "ConvNext"),
    "efficientnet-b0-training": lambda: _classifier_training(
        "efficientnet-b0-training",
        "EfficientNet",
        **_EFFICIENTNET_B0,
        dropout_rate=0.0,
        drop_connect_rate=0.0,
    ),
    "swin-tiny-training": lambda: _classifier_training(
        "swin-tiny-training", "Swin", drop_path_rate=0.0
    ),
    "vit-large-training": lambda: _classifier_training("vit-large-training", "ViT", **_VIT_LARGE),
    "bert-large-training": _bert_training,
    "diffusion-unet-training": _unet_training,
    "gpt2-training": _gpt2_training,
    "llama-training": _llama_training,
}
"""Modules that return a loss, by name."""


def large_model(name: str, dtype: torch.dtype, device: str) -> RealInput:
    """A model of `LARGE` or `TRAINED` with weights of a type on a device."""
    with _defaults(dtype, device):
        return (LARGE | TRAINED)[name]()


@contextmanager
def _defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
