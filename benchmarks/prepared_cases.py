"""Cases that a farm compiles into a folder without a GPU, and that run from there on a GPU."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.ir.graph_ir import Graph
from tests.support.prepared_folder import prepare
from tests.support.traced_graphs import recording

Layer = Callable[..., Any]


def parser_of(description: str | None, *alone: str) -> argparse.ArgumentParser:
    """A parser of `build FOLDER` and `run FOLDER`, with the options of all such benchmarks.

    The commands `alone` need no folder.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run", *alone))
    parser.add_argument("folder", type=Path, nargs="?" if alone else None)
    parser.add_argument("--target", default="cuda:sm_90a", help="for build")
    parser.add_argument("--no-inductor", action="store_true")
    return parser


def many_compilations() -> Any:
    """A context in which a process may compile one function many times."""
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    return torch._dynamo.config.patch(limits)


def compiled(layer: Layer, backend: Any, options: Any = None) -> Layer:
    """The layer compiled for fixed sizes."""
    torch._dynamo.reset()
    found: Layer = torch.compile(layer, backend=backend, dynamic=False, options=options)
    return found


def captured(
    layer: Layer, operands: Sequence[Tensor], *, has_gradients: bool = False
) -> list[Graph]:
    """The layer's graphs, with those of gradients if asked for; nothing is computed."""
    found: list[CapturedGraph] = []
    made = compiled(layer, recording(found, runs=False))(*operands)
    if has_gradients:
        leaves = [operand for operand in operands if operand.requires_grad]
        torch.autograd.grad(made, leaves, torch.empty_like(made))
    return [graph.graph for graph in found]


def build(
    named: Iterable[tuple[str, list[Graph]]],
    options: argparse.Namespace,
    stated: Sequence[CompileOptions] = (CompileOptions(),),
) -> int:
    """Fills the folder with programs of each option; 1 if a graph did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(named, options.folder, options.target, {}, stated)
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def print_rows(rows: Iterable[tuple[str, Callable[[], str]]]) -> int:
    """Prints a row for each name; 1 if one failed, which is a row of the table, too."""
    failures = 0
    for name, row in rows:
        try:
            found = row()
        except Exception as error:  # a case that fails is one row of the table
            failures += 1
            text = "".join(traceback.format_exception_only(error)).strip()
            found = f"FAILED {text[:400]}"
        print(f"{name} {found}", flush=True)
    return 1 if failures else 0
