"""Frozen models on a CPU beside eager, unfrozen ones, and Inductor with and without freezing.

All arms take turns in one process; a line has the median time of each arm in milliseconds. With
`--errors`, it has the largest error of eager and of each arm of ours against float64 instead,
relative to the largest result. Weights are random, from configs; batch norms have random
statistics. The endpoint is the one of the environment (`KERNELFARM_ENDPOINT`).

Usage: python -m benchmarks.freezing [--models NAME ...] [--batches N ...] [--dtype T]
           [--threads N] [--arms ARM ...] [--rounds N] [--errors]
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.machine import machine
from benchmarks.timing import Call, median_ms
from examples.mobile_net import MobileNet
from examples.model_zoo import FirstResult, built

PIXELS = 224
TOKENS = 128
VOCABULARY = 30522


def _images(family: str, **options: Any) -> nn.Module:
    model = built(family, "ForImageClassification", **options)
    return FirstResult(model, "logits", ("pixel_values",))


def _bert() -> nn.Module:
    return FirstResult(built("Bert", "Model"), "last_hidden_state", ("input_ids",))


_SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet-50": partial(_images, "ResNet"),
    "mobilenet-v3": MobileNet,
    "convnext-tiny": partial(_images, "ConvNext"),
    "vit-small": partial(_images, "ViT", **_SMALL),
    "swin-tiny": partial(_images, "Swin"),
    "bert-base": _bert,
}

ARMS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "ours": {"backend": "kernelfarm", "options": {"mode": "strict"}},
    "ours frozen": {"backend": "kernelfarm", "options": {"mode": "strict", "freezing": True}},
    "inductor": {"backend": "inductor"},
    "inductor frozen": {"backend": "inductor", "options": {"freezing": True}},
}


def main() -> None:
    """Prints one line for each model and batch."""
    options = _options()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    print(machine(), torch.__version__, f"{options.threads} threads", options.dtype)
    # The threads that compile for Inductor would run while arms are measured.
    with torch._inductor.config.patch(compile_threads=1):
        for name in options.models:
            for batch in options.batches:
                print(_line(name, batch, options), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", nargs="*", choices=tuple(ARMS), default=tuple(ARMS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--errors", action="store_true")
    return parser.parse_args()


def seeded_model(name: str) -> nn.Module:
    """A model in f32, whose batch norms have statistics as after training."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.1)
    return model


def _line(name: str, batch: int, options: argparse.Namespace) -> str:
    torch._dynamo.reset()
    dtype = getattr(torch, options.dtype)
    exact = seeded_model(name)
    model = copy.deepcopy(exact).to(dtype)
    torch.manual_seed(1)
    is_text = name.startswith("bert")
    images = torch.randn(batch, 3, PIXELS, PIXELS)
    given = torch.randint(2, VOCABULARY, (batch, TOKENS)) if is_text else images.to(dtype)
    calls = {arm: _call(model, given, ARMS[arm]) for arm in options.arms}
    head = f"{name:<14} batch {batch:<3}"
    if options.errors:
        wide = given if is_text else given.double()
        expected = exact.double()(wide)
        scale = expected.abs().max()
        found = {
            arm: float((call().double() - expected).abs().max() / scale)
            for arm, call in calls.items()
        }
        return head + "".join(f"  {arm} {error:.2e}" for arm, error in found.items())
    times = median_ms(calls, "cpu", rounds=options.rounds, calls=1)
    return head + "".join(f"  {arm} {ms:.2f}" for arm, ms in times.items())


def _call(model: nn.Module, given: torch.Tensor, stated: dict[str, Any] | None) -> Call:
    """A call of the model, compiled for this size."""
    if stated is None:
        return lambda: model(given)
    function = torch.compile(copy.deepcopy(model), dynamic=False, **stated)
    # Dynamo reads Inductor's own setting as it traces: an option would come too late.
    is_frozen = stated["backend"] == "inductor" and "freezing" in stated.get("options", {})
    with torch._inductor.config.patch(freezing=is_frozen):
        function(given)
    return lambda: function(given)


if __name__ == "__main__":
    main()
