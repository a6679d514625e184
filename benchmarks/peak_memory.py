"""Peak memory of one call on the CPU: kernelfarm compared with eager and Inductor.

A figure is the most bytes that a call holds at a time beside what exists before it (weights and
inputs): intermediate results, results, for a training step also saved tensors and gradients. They
are summed over the allocations and frees that PyTorch's profiler records, in order, for all arms
alike; a free counts if the call allocated the block. kernelfarm's arena, which later calls reuse,
is freed before the measured call, so it counts. Memory that libraries allocate without PyTorch's
allocator (packed weights of oneDNN, for example) is not recorded.

Usage: python -m benchmarks.peak_memory [--models NAME ...] [--no-training] [--no-inductor]
           [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.machine import machine
from examples.farm import running_farm
from examples.large_models import LARGE
from examples.model_zoo import MODELS, model_of
from examples.real_inputs import RealInput
from examples.shallow_models import SHALLOW
from kernelfarm.client.runtime import arena
from tests.support.allocations import peak_of

ARMS = ("eager", "kernelfarm", "inductor")
MIB = 1 << 20
_REAL_WIDTHS = SHALLOW | LARGE
WITHOUT_TRAINING = ("llama-prefill", "llama-decode", *LARGE)
"""Models with a cache, which inference alone uses, and models whose step takes minutes here."""


@dataclass
class Measured:
    """Peak bytes of a model's call by arm; arms that failed are missing."""

    model: str
    step: str
    peak_bytes: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*MODELS, *SHALLOW, *LARGE]
    parser.add_argument("--models", nargs="*", choices=names, default=[*MODELS, *SHALLOW])
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    arms = [arm for arm in ARMS if arm != "inductor" or not options.no_inductor]
    print(f"{machine()}, torch {torch.__version__}")
    rows = []
    with running_farm(vendors="cpu") as farm:
        for name in options.models:
            is_trained = not options.no_training and name not in WITHOUT_TRAINING
            for step in ("inference", "training") if is_trained else ("inference",):
                rows.append(measure(name, step, arms, farm.endpoint))
                print(_line(rows[-1]), flush=True)
    for step in ("inference", "training"):
        for peer in arms:
            if peer != "kernelfarm" and (ratios := _ratios(rows, step, peer)):
                mean = statistics.geometric_mean(ratios)
                print(f"{step}: kernelfarm / {peer}: {mean:.3f} of {len(ratios)} models")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if not any(row.failures for row in rows) else 1


def measure(name: str, step: str, arms: list[str], endpoint: str) -> Measured:
    """The peaks of one model's inference or training step."""
    found = Measured(name, step)
    for arm in arms:
        torch._dynamo.reset()
        source = _REAL_WIDTHS[name]() if name in _REAL_WIDTHS else model_of(name, torch.float32)
        try:
            call = _call(source, step, arm, endpoint)
            for _ in range(2):  # the first call compiles
                call()
            arena.release()
            found.peak_bytes[arm] = peak_of(call)
        except Exception as error:
            traceback.print_exc()
            found.failures[arm] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


def _call(source: RealInput, step: str, arm: str, endpoint: str) -> Callable[[], None]:
    """One inference or training step, whose results are dropped."""
    model = source.model.train(step == "training")
    function: Callable[..., torch.Tensor] = model
    if arm == "kernelfarm":
        options = {"strict": True, "endpoint": endpoint, "timeout_s": 600.0}
        function = torch.compile(model, backend="kernelfarm", options=options)
    elif arm == "inductor":
        function = torch.compile(model)

    def infer() -> None:
        with torch.no_grad():
            function(*source.args)

    def train() -> None:
        model.zero_grad(set_to_none=True)
        function(*source.args).float().pow(2).mean().backward()

    return train if step == "training" else infer


def _ratios(rows: list[Measured], step: str, peer: str) -> list[float]:
    arms = {peer, "kernelfarm"}
    rows = [row for row in rows if row.step == step and arms <= row.peak_bytes.keys()]
    return [row.peak_bytes["kernelfarm"] / row.peak_bytes[peer] for row in rows]


def _line(row: Measured) -> str:
    peaks = "  ".join(f"{arm} {size / MIB:9.3f} MiB" for arm, size in row.peak_bytes.items())
    failed = "".join(f"  {arm} failed" for arm in row.failures)
    return f"{row.model:<14} {row.step:<9} {peaks}{failed}"


if __name__ == "__main__":
    sys.exit(main())
