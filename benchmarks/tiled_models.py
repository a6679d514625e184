"""Transformers on the CPU: products by kernels beside the library's, eager and Inductor.

Milliseconds of a forward pass in f32, the smallest of some rounds in which the arms take turns in
one process. `library` is kernelfarm with all products by the framework, `ours` with the target's
own choice. All stages of the farm run in this process.

Usage: python -m benchmarks.tiled_models [--target T] [--threads N] [--models NAME ...]
           [--no-inductor] [--rounds N]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from benchmarks.timing import rounds_ms
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import TargetFacts, target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

GPT2_LAYERS = 6
"""As DistilGPT-2 has: the other six are equal."""


def bert(batch: int) -> tuple[nn.Module, torch.Tensor]:
    """BERT-base, and 128 tokens of each of `batch` texts."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - slow to import

    model = BertModel(BertConfig(), add_pooling_layer=False)
    return model, torch.randint(0, 30000, (batch, 128))


def gpt2(tokens: int) -> tuple[nn.Module, torch.Tensor]:
    """Half of GPT-2's layers, and the tokens of a prompt."""
    from transformers import GPT2Config, GPT2Model  # noqa: PLC0415 - slow to import

    model = GPT2Model(GPT2Config(n_layer=GPT2_LAYERS, use_cache=False))
    return model, torch.randint(0, 50000, (1, tokens))


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "bert-1x128": lambda: bert(1),
    "bert-8x128": lambda: bert(8),
    "gpt2-prefill-256": lambda: gpt2(256),
}


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    facts = target_facts(options.target)
    print(f"{options.target}, {options.threads} threads, torch {torch.__version__}")
    for name in options.models:
        torch.manual_seed(0)
        torch._dynamo.reset()  # it compiles one function only so many times
        model, tokens = MODELS[name]()
        arms = _arms(model.eval(), facts, with_inductor=options.inductor)
        exact = model(tokens)[0]
        for arm, call in arms.items():
            error = (call(tokens)[0] - exact).abs().max().item()
            print(f"{name} {arm}: largest difference from eager {error:.1e}", flush=True)
        calls = {arm: partial(call, tokens) for arm, call in arms.items()}
        found = rounds_ms(calls, "cpu", rounds=options.rounds, calls=1, warm_ups=1)
        print(name, *(f"{arm} {min(times):.1f} ms" for arm, times in found.items()), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=host_cpu_target())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--no-inductor", dest="inductor", action="store_false")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def _arms(
    model: nn.Module, facts: TargetFacts, *, with_inductor: bool
) -> dict[str, Callable[..., Any]]:
    without = replace(facts, tiles=None, few_rows=None)
    arms: dict[str, Callable[..., Any]] = {
        "eager": model,
        "library": _compiled(model, without),
        "ours": _compiled(model, facts),
    }
    if with_inductor:
        # More threads that compile would run while programs are measured.
        arms["inductor"] = torch.compile(model, options={"compile_threads": 1})
    return arms


def _compiled(model: nn.Module, facts: TargetFacts) -> Callable[..., Any]:
    def compile_graph(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., Any]:
        run = compile_here(captured, Counts(), facts)
        return lambda *args: run(list(args))

    return torch.compile(model, backend=capturing(compile_graph))


if __name__ == "__main__":
    main()
