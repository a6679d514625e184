"""Whole models on an NVIDIA GPU, compared with eager and Inductor in one run.

`build` compiles by a farm into a folder, without a GPU. `run` needs that folder and a GPU, but no
farm. For each model it reports the largest error against float64, eager's own error, and the time
of a call in three alternating arms: as Python calls it (Python, launches and kernels), and replayed
as a CUDA graph (kernels alone). For a training step, which is not replayed, the errors are those of
all gradients.

With `--frozen`, inference models are frozen, by Inductor, too. Where a GPU's machine captures other
graphs, `run` with `--json` writes them, and `build` with that file compiles them instead.

Usage: python -m benchmarks.gpu_models build FOLDER [--models NAME ...] [--graphs FILE]
       python -m benchmarks.gpu_models run FOLDER [--models NAME ...] [--json FILE] [--no-inductor]
       (with --frozen, both for frozen models)
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Call, median_ms, replayed
from examples.large_models import LARGE, TRAINED, large_model
from examples.model_zoo import MODELS as ZOO
from examples.model_zoo import model_of
from examples.real_inputs import RealInput, reference_model
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import parse_graph
from tests.support.frozen_graphs import captured_frozen, frozen_one
from tests.support.prepared_folder import canonical_text, offline, prepare
from tests.support.traced_graphs import recording

TARGET = "cuda:sm_90a"
DTYPES = (torch.float16, torch.bfloat16)
ROUNDS = 5
CALLS = 20


@dataclass
class Measured:
    """One model; errors are absolute, times in milliseconds, None if an arm failed."""

    model: str
    dtype: str
    error: float = 0.0
    eager_error: float = 0.0
    largest: float = 0.0
    call_ms: dict[str, float] | None = None
    graph_ms: dict[str, float] | None = None
    failure: str = ""
    other_graphs: list[str] | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", choices=names(), default=names())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--graphs", type=Path)
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    if options.frozen and (trained := sorted(set(options.models) & set(TRAINED))):
        parser.error(f"--frozen is for inference; name models without {', '.join(trained)}")
    warnings.simplefilter("ignore")
    return (build if options.command == "build" else run)(options)


def names() -> list[str]:
    """The models that can be measured."""
    return ["reference", *LARGE, *TRAINED, *ZOO]


def sources(wanted: list[str], device: str) -> Iterator[tuple[str, torch.dtype, RealInput]]:
    """The models with their types: small ones in both half types, the others in bfloat16."""
    for name in wanted:
        for dtype in DTYPES if name in ZOO else (torch.bfloat16,):
            if name in LARGE or name in TRAINED:
                yield name, dtype, large_model(name, dtype, device)
                continue
            source = model_of(name, dtype) if name in ZOO else reference_model()
            args = tuple(a.to(dtype) if a.is_floating_point() else a for a in source.args)
            moved = tuple(a.to(device) for a in args)
            yield name, dtype, RealInput(name, source.model.to(device, dtype), moved)


def build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    notes = {"transformers": metadata.version("transformers")}
    captured = _written(options.graphs) if options.graphs else _captured(options)
    prepared = prepare(captured, options.folder, TARGET, notes)
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    print(f"{len(prepared.graphs)} models")
    return 1 if prepared.failures else 0


def _written(file: Path) -> Iterator[tuple[str, list[Graph]]]:
    """The graphs that a run captured, where they were others than the prepared ones."""
    for row in json.loads(file.read_text()):
        if row["other_graphs"]:
            graphs = [parse_graph(text) for text in row["other_graphs"]]
            yield f"{row['model']} torch.{row['dtype']}", graphs


def _captured(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    for name, dtype, source in sources(options.models, "cpu"):
        if options.frozen:
            frozen, _ = frozen_one(source.model, TARGET, *source.args)
            yield f"{name} {dtype}", [captured_frozen(frozen).graph]
        else:
            yield f"{name} {dtype}", graphs_of(source, runs=False)


def graphs_of(source: RealInput, *, runs: bool) -> list[Graph]:
    """The model's graphs on the device of its weights, with those of gradients for a training."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    function = torch.compile(source.model, backend=recording(found, runs=runs))
    _step(source, function)() if source.name in TRAINED else _inferred(function, source.args)()
    return [captured.graph for captured in found]


def _inferred(function: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> Call:
    """A call of an inference."""

    def call() -> torch.Tensor:
        with torch.no_grad():
            return function(*args)

    return call


def _step(source: RealInput, function: Callable[..., torch.Tensor]) -> Call:
    """A forward and a backward pass, from which each weight has a new gradient."""
    weights = list(source.model.parameters())

    def call() -> torch.Tensor:
        for weight in weights:
            weight.grad = None
        loss = function(*source.args)
        loss.backward()
        return loss

    return call


def run(options: argparse.Namespace) -> int:
    """Measures the programs of `build`; the exit status is 1 if a model failed or is less exact."""
    rows = []
    arms = ("kernelfarm",) if options.no_inductor else ("kernelfarm", "inductor")
    print(torch.cuda.get_device_name(), torch.__version__)
    with offline(options.folder) as prepared:
        built, here = prepared.notes["transformers"], metadata.version("transformers")
        if built != here:
            print(
                f"transformers {here}; built with {built}: models with other code have other keys"
            )
        for name, dtype, source in sources(options.models, "cuda"):
            if f"{name} {dtype}" not in prepared.graphs:
                continue
            row = Measured(name, str(dtype).removeprefix("torch."))
            try:
                _measure(row, source, arms, is_frozen=options.frozen)
            except Exception as error:  # a model that fails is one row of the table
                row.failure = "".join(traceback.format_exception_only(error)).strip()[:600]
                texts = [canonical_text(graph) for graph in graphs_of(source, runs=True)]
                if texts != prepared.graphs.get(f"{name} {dtype}"):
                    row.other_graphs = texts
            rows.append(row)
            print(_line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(_is_good(row) for row in rows) else 1


def _measure(row: Measured, source: RealInput, arms: tuple[str, ...], *, is_frozen: bool) -> None:
    is_trained = source.name in TRAINED
    exact = _exact(source)
    row.largest = float(exact.abs().max())
    calls: dict[str, Call] = {}
    for arm in ("eager", *arms):
        torch._dynamo.reset()
        function: Callable[..., torch.Tensor] = source.model
        if arm != "eager":
            stated = {"mode": "strict", "timeout_s": 2.0, "freezing": is_frozen}
            options = stated if arm == "kernelfarm" else {"freezing": is_frozen}
            function = torch.compile(source.model, backend=arm, options=options)
        calls[arm] = _step(source, function) if is_trained else _inferred(function, source.args)
        result = calls[arm]()
        if arm == "inductor":
            continue
        error = _error(_gradients(source.model) if is_trained else result, exact)
        if arm == "eager":
            row.eager_error = error
        else:
            row.error = error
    row.call_ms = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
    if not is_trained:
        graphs = {arm: replayed(call) for arm, call in calls.items()}
        row.graph_ms = median_ms(graphs, "cuda", rounds=ROUNDS, calls=CALLS)


def _exact(source: RealInput) -> torch.Tensor:
    wide = tuple(a.double() if a.is_floating_point() else a for a in source.args)
    model = copy.deepcopy(source.model).double()
    moved = RealInput(source.name, model, wide)
    if source.name not in TRAINED:
        return _inferred(model, wide)().double()
    _step(moved, model)()
    return _gradients(model)


def _gradients(model: torch.nn.Module) -> torch.Tensor:
    """Every gradient in a row, in float32. Shapes: (parameters,)."""
    return torch.cat([weight.grad.float().flatten() for weight in model.parameters()])


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.to(exact.dtype) - exact).abs().max())


def _is_good(row: Measured) -> bool:
    few_ulp = 8 * torch.finfo(getattr(torch, row.dtype)).eps * row.largest
    return not row.failure and row.error <= max(2 * row.eager_error, few_ulp)


def _line(row: Measured) -> str:
    head = f"{row.model:<16}{row.dtype:<9}"
    if row.failure:
        return f"{head} FAILED {row.failure[:300]}"
    mark = "" if _is_good(row) else "  WRONG"
    times = [
        f"{word} " + " ".join(f"{arm} {ms:.3f}" for arm, ms in (found or {}).items())
        for word, found in (("call", row.call_ms), ("graph", row.graph_ms))
    ]
    return f"{head} error {row.error:.2g} / {row.eager_error:.2g}{mark}; {'; '.join(times)}"


if __name__ == "__main__":
    sys.exit(main())
