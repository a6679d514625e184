"""Products that a client measures on its GPU for the fleet: each with both of its candidates.

`build` compiles the candidates by a farm into a folder, without a GPU. `run` needs that folder and
a GPU, but no farm: it measures as a client does that the farm asks to
(`options={"products": "tuned"}`), and prints the times that it would report.

Usage: python -m benchmarks.measured_products build FOLDER [--target T] [--rows M ...]
       python -m benchmarks.measured_products run FOLDER [--rows M ...]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.products import PROGRAMS, compiled_layer, layer_operands
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.product_fragments import product_fragments
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.finder import access_to
from kernelfarm.client.programs.product_measuring import Measuring
from kernelfarm.client.programs.product_subjects import CANDIDATES, product_subjects, timer_of
from kernelfarm.client.settings import client_settings
from kernelfarm.ir.graph_ir import Graph
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

ROWS = (1, 16, 512, 2048)
_LIMIT_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a", help="for build")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        return (_build if options.command == "build" else _run)(options)


def _build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a candidate did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    stated = [CompileOptions(products=choice) for choice in CANDIDATES]
    prepared = prepare(_fragments(options), options.folder, options.target, {}, stated)
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def _fragments(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    for name, captured in _captured(options, "cpu"):
        yield name, [cut.captured.graph for cut in product_fragments(captured).fragments]


def _captured(options: argparse.Namespace, device: str) -> Iterator[tuple[str, CapturedGraph]]:
    for name, program in PROGRAMS.items():
        for rows in options.rows:
            found: list[CapturedGraph] = []
            operands = next(layer_operands(program, rows, device, has_values=False))
            compiled_layer(program, recording(found, runs=False))(*operands)
            yield f"{name}, {rows} rows", found[0]


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__)
    print("product: times of the candidates in microseconds; library / own; seconds to measure")
    with offline(options.folder):
        access = access_to(client_settings(timeout_s=2.0))
        for name, captured in _captured(options, "cuda"):
            support = device_support(captured.device)
            timer = timer_of(support, captured)
            assert timer is not None  # a GPU's loader has one
            measuring = Measuring(access, support, timer, _LIMIT_S)
            for subject in product_subjects(captured, support, CompileOptions(), timer):
                start_s = time.monotonic()
                library, own = measuring.times_ms(subject)
                took_s = time.monotonic() - start_s
                print(
                    f"{name:<52} node {subject.fragment.nodes[0]}: {1e3 * library:7.1f}"
                    f" {1e3 * own:7.1f}  {library / own:.2f}  {took_s:.2f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
