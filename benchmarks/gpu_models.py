"""Whole models on an NVIDIA GPU, compared with eager and Inductor in one run.

`build` compiles by a farm into a folder, without a GPU. `run` needs that folder and a GPU, but no
farm. For each model it reports the largest error against float64, eager's own error, and the time
of a call in three alternating arms: as Python calls it (Python, launches and kernels), and replayed
as a CUDA graph (kernels alone). For a training step, which is not replayed, the errors are those of
all gradients.

It also reports the memory that each arm needs at most during a call, beside the model and its
inputs: what the arm keeps between calls, and what a call allocates, with the libraries' workspaces.

`--arms` picks the arms. `recorded` is kernelfarm with CUDA graphs, `reduce-overhead` is Inductor
with them, and `max-autotune` is Inductor that measures the candidates of products and convolutions
first. The first two are called only, and their memory is not reported. The seconds until each arm's
first result are reported, too.

With `--frozen`, inference models are frozen, by Inductor, too. Where a GPU's machine captures other
graphs, `run` with `--json` writes them, and `build` with that file compiles them instead.

Usage: python -m benchmarks.gpu_models build FOLDER [--models NAME ...] [--graphs FILE]
       python -m benchmarks.gpu_models run FOLDER [--models NAME ...] [--json FILE] [--arms ARM ...]
       (with --frozen, both for frozen models)
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import sys
import time
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
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "kernelfarm": ("kernelfarm", {"mode": "strict", "timeout_s": 2.0}),
    "recorded": ("kernelfarm", {"mode": "strict", "timeout_s": 2.0, "cuda_graphs": True}),
    "inductor": ("inductor", {}),
    "reduce-overhead": ("inductor", {"triton.cudagraphs": True}),
    "max-autotune": ("inductor", {"max_autotune": True, "coordinate_descent_tuning": True}),
}
"""The backend of each arm and its options."""
REPLAYED = ("eager", "kernelfarm", "inductor", "max-autotune")
"""The arms without graphs of their own, whose memory is that of the graphs."""
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
    peak_mib: dict[str, float] | None = None
    first_s: dict[str, float] | None = None
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
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=["kernelfarm", "inductor"])
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
    function = torch.compile(source.model, backend=recording(found, runs=runs, target=TARGET))
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
                _measure(row, source, options.arms, is_frozen=options.frozen)
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


def _measure(row: Measured, source: RealInput, arms: list[str], *, is_frozen: bool) -> None:
    is_trained = source.name in TRAINED
    exact = _exact(source)
    row.largest = float(exact.abs().max())
    calls: dict[str, Call] = {}
    row.peak_mib, row.first_s = {}, {}
    for arm in ("eager", *arms):
        torch._dynamo.reset()
        gc.collect()
        _start_libraries()
        before = torch.cuda.memory_allocated()
        function: Callable[..., torch.Tensor] = source.model
        if arm != "eager":
            backend, stated = ARMS[arm]
            options = {**stated, "freezing": is_frozen}
            function = torch.compile(source.model, backend=backend, options=options)
        calls[arm] = _step(source, function) if is_trained else _inferred(function, source.args)
        begin_s = time.perf_counter()
        result = calls[arm]()
        torch.cuda.synchronize()
        row.first_s[arm] = time.perf_counter() - begin_s
        for _ in range(0 if arm in REPLAYED else 3):
            result = calls[arm]()  # a recorded graph is launched after calls that warm up
        error = _error(_gradients(source.model) if is_trained else result, exact)
        del result
        source.model.zero_grad()
        if arm in REPLAYED:
            row.peak_mib[arm] = (_peak_bytes(calls[arm]) - before) / 2**20
        source.model.zero_grad()
        if arm == "eager":
            row.eager_error = error
        elif ARMS[arm][0] == "kernelfarm":
            row.error = max(row.error, error)
    row.call_ms = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
    if not is_trained:
        graphs = {a: replayed(c) for a, c in calls.items() if a in REPLAYED}
        row.graph_ms = median_ms(graphs, "cuda", rounds=ROUNDS, calls=CALLS)


def _start_libraries() -> None:
    """Has cuBLAS allocate its workspace, which all arms share."""
    one = torch.ones((16, 16), device="cuda", dtype=torch.bfloat16)
    one @ one


def _peak_bytes(call: Call) -> int:
    """The most bytes that are allocated at a time during a call, those of before included."""
    call()
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


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
        for word, found in (
            ("call", row.call_ms),
            ("graph", row.graph_ms),
            ("MiB", row.peak_mib),
            ("first s", row.first_s),
        )
    ]
    return f"{head} error {row.error:.2g} / {row.eager_error:.2g}{mark}; {'; '.join(times)}"


if __name__ == "__main__":
    sys.exit(main())
