"""Whole models on an NVIDIA GPU, compared with eager and Inductor in one run.

`build` compiles by a farm into a folder, without a GPU. `run` needs that folder and a GPU, but no
farm. For each model it reports the largest error against float64, eager's own error, and the time
of a call in three alternating arms: as Python calls it (Python, launches and kernels), and replayed
as a CUDA graph (kernels alone).

Usage: python -m benchmarks.gpu_models build FOLDER [--models NAME ...]
       python -m benchmarks.gpu_models run FOLDER [--models NAME ...] [--json FILE] [--no-inductor]
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
from pathlib import Path

import torch

from benchmarks.timing import median_ms, replayed
from examples.large_models import LARGE
from examples.model_zoo import MODELS as ZOO
from examples.model_zoo import model_of
from examples.real_inputs import RealInput, reference_model
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
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
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return (build if options.command == "build" else run)(options)


def names() -> list[str]:
    """The models that can be measured."""
    return ["reference", *LARGE, *ZOO]


def sources(wanted: list[str]) -> Iterator[tuple[str, torch.dtype, RealInput]]:
    """The models with their types: small ones in both half types, large ones in bfloat16."""
    for name in wanted:
        for dtype in DTYPES:
            if name in ZOO:
                yield name, dtype, model_of(name, dtype)
            elif dtype is torch.bfloat16:
                source = LARGE[name]() if name in LARGE else reference_model()
                args = tuple(a.to(dtype) if a.is_floating_point() else a for a in source.args)
                yield name, dtype, RealInput(name, source.model.to(dtype), args)


def build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(_captured(options.models), options.folder, TARGET, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    print(f"{len(prepared.graphs)} models")
    return 1 if prepared.failures else 0


def _captured(wanted: list[str]) -> Iterator[tuple[str, list[Graph]]]:
    for name, dtype, source in sources(wanted):
        yield f"{name} {dtype}", graphs_of(source, runs=False)


def graphs_of(source: RealInput, *, runs: bool) -> list[Graph]:
    """The model's graphs on the device of its weights."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(source.model, backend=recording(found, runs=runs))(*source.args)
    return [captured.graph for captured in found]


def run(options: argparse.Namespace) -> int:
    """Measures the programs of `build`; the exit status is 1 if a model failed or is less exact."""
    rows = []
    arms = ("kernelfarm",) if options.no_inductor else ("kernelfarm", "inductor")
    print(torch.cuda.get_device_name(), torch.__version__)
    with offline(options.folder) as prepared:
        for name, dtype, source in sources(options.models):
            row = Measured(name, str(dtype).removeprefix("torch."))
            moved = RealInput(name, source.model.cuda(), tuple(a.cuda() for a in source.args))
            try:
                _measure(row, moved, arms)
            except Exception as error:  # a model that fails is one row of the table
                row.failure = "".join(traceback.format_exception_only(error)).strip()[:600]
                texts = [canonical_text(graph) for graph in graphs_of(moved, runs=True)]
                if texts != prepared.graphs.get(f"{name} {dtype}"):
                    row.other_graphs = texts
            rows.append(row)
            print(_line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(_is_good(row) for row in rows) else 1


def _measure(row: Measured, source: RealInput, arms: tuple[str, ...]) -> None:
    model, args = source.model, source.args
    with torch.no_grad():
        eager = model(*args)
        exact = _exact(source)
        calls: dict[str, Callable[[], torch.Tensor]] = {"eager": lambda: model(*args)}
        for arm in arms:
            torch._dynamo.reset()
            options = {"mode": "strict", "timeout_s": 2.0} if arm == "kernelfarm" else None
            compiled = torch.compile(model, backend=arm, options=options)
            result = compiled(*args)
            if arm == "kernelfarm":
                row.error, row.eager_error = _error(result, exact), _error(eager, exact)
                row.largest = float(exact.abs().max())
            calls[arm] = lambda compiled=compiled: compiled(*args)
        row.call_ms = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
        graphs = {arm: replayed(call) for arm, call in calls.items()}
        row.graph_ms = median_ms(graphs, "cuda", rounds=ROUNDS, calls=CALLS)


def _exact(source: RealInput) -> torch.Tensor:
    wide = tuple(a.double() if a.is_floating_point() else a for a in source.args)
    result: torch.Tensor = copy.deepcopy(source.model).double()(*wide)
    return result


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).abs().max())


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
