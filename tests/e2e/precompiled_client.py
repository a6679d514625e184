"""A process that makes or loads packages of PyTorch's precompilation, for `test_precompiled`.

Usage: python -m tests.e2e.precompiled_client ACTION FOLDER

Packages and PyTorch's caches are in the folder. Prints one JSON line: the largest error against
eager, the counters, and what was traced.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils
from torch import nn

from kernelfarm.client import counters


class Classifier(nn.Module):
    """Two layers, a scale that is a Python number, and a buffer that counts calls in place."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(96, 64), nn.Linear(64, 32)
        self.scale = 2.0
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (batch, 96) -> (batch, 32)."""
        self.calls.add_(1)
        return self.second(torch.relu(self.first(x)) * self.scale).softmax(-1)


class Plain(nn.Module):
    """A layer and a softmax, to be trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (batch, 96) -> (batch, 64)."""
        return torch.tanh(self.layer(x)).log_softmax(-1)


def branches(x: torch.Tensor) -> torch.Tensor:
    """A function with a graph break."""
    y = (x * 2).sin()
    return y + 1 if y.sum() > 0 else y.cos() - 1


def inputs(rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 96, generator=torch.Generator().manual_seed(1))


def save(folder: Path) -> float:
    """Precompiles the classifier and saves the package."""
    model = Classifier()
    compiled = torch.compile(model, backend="kernelfarm", fullgraph=True)
    package = compiled.forward.aot_compile(((inputs(),), {}))
    package.save_compiled_function(str(folder / "static"))
    return error_of(package, model, inputs())


def load(folder: Path) -> float:
    """Runs the package on a model with other weights."""
    return error_of(loaded(folder / "static"), Classifier(seed=5), inputs())


def other_rows(folder: Path) -> float:
    return error_of(loaded(folder / "static"), Classifier(), inputs(rows=3))


def other_scale(folder: Path) -> float:
    model = Classifier()
    model.scale = 3.0
    return error_of(loaded(folder / "static"), model, inputs())


def save_varying(folder: Path) -> float:
    """Precompiles the classifier for any number of rows."""
    model, x = Classifier(), inputs()
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(model, backend="kernelfarm", fullgraph=True)
    package = compiled.forward.aot_compile(((x,), {}))
    package.save_compiled_function(str(folder / "varying"))
    return 0.0


def load_varying(folder: Path) -> float:
    package = loaded(folder / "varying")
    return max(error_of(package, Classifier(), inputs(rows)) for rows in (2, 8, 33))


def save_training(folder: Path) -> float:
    model = Plain()
    with torch.enable_grad():
        compiled = torch.compile(model, backend="kernelfarm", fullgraph=True)
        package = compiled.forward.aot_compile(((inputs(),), {}))
    package.save_compiled_function(str(folder / "training"))
    return 0.0


def load_training(folder: Path) -> float:
    return training_error(loaded(folder / "training"))


def cache(_: Path) -> float:
    """Runs a function with graph breaks and two shapes, and saves PyTorch's own cache."""
    compiled = torch.compile(branches, backend="kernelfarm")
    xs = (inputs(), -inputs(), inputs(rows=5))
    error = max((compiled(x) - branches(x)).abs().max().item() for x in xs)
    torch.compiler.save_cache_artifacts()
    return error


def cache_training(_: Path) -> float:
    compiled = torch.compile(Plain.forward, backend="kernelfarm")
    error = training_error(compiled)
    torch.compiler.save_cache_artifacts()
    return error


def loaded(file: Path) -> Callable[..., Any]:
    with file.open("rb") as stored:
        return torch.compiler.load_compiled_function(stored)


def error_of(package: Callable[..., Any], model: Classifier, x: torch.Tensor) -> float:
    """The largest error of the result, or of the buffer that the call updates."""
    before = model.calls.item()
    found = package(model, x)
    changed = model.calls.item() - before
    expected = model(x)
    return max((found - expected).abs().max().item(), abs(changed - 1))


def training_error(function: Callable[..., Any]) -> float:
    """The largest error of the result and of the gradients."""
    with torch.enable_grad():
        ours, eager = Plain(), Plain()
        found, expected = function(ours, inputs()), eager(inputs())
        found.square().sum().backward()
        expected.square().sum().backward()
    pairs = [(found, expected)]
    pairs += zip(
        (p.grad for p in ours.parameters()), (p.grad for p in eager.parameters()), strict=True
    )
    return max((a - b).abs().max().item() for a, b in pairs)


ACTIONS = (save, load, other_rows, other_scale, save_varying, load_varying)
ACTIONS += (save_training, load_training, cache, cache_training)


def main(action: str, folder: Path) -> None:
    (run,) = (found for found in ACTIONS if found.__name__ == action)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    torch._dynamo.config.caching_precompile = run in (cache, cache_training)
    torch._dynamo.config.enable_aot_compile = True  # off by default in torch 2.11
    with torch.no_grad():
        error = run(folder)
    found = torch._dynamo.utils.counters
    traced, frames = found["aot_autograd"]["total"], found["frames"]["total"]
    print(
        json.dumps(
            {
                "error": error,
                "traced": traced,
                "frames": frames,
                "counters": counters.snapshot(),
                "package": dict(found["dynamo_cache"]),
                "imported": sorted({name.partition(".")[0] for name in sys.modules}),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
