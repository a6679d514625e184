"""Whole models by one farm on the CPU, compared with eager and Inductor.

For each model and type: the errors of kernelfarm and eager against float64, launches by the rule of
`benchmarks.launches`, extern steps by name, the farm's time with an empty cache, and Inductor's
launches (from a file, because they need a process each). With `--targets`: which kernels fail in
the toolchain of which target.

Usage: python -m benchmarks.models [--models NAME ...] [--dtypes T ...] [--inductor]
           [--targets TARGET ...] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.model_table import markdown_of
from examples.farm import running_farm
from examples.model_zoo import MODELS, model_of
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.errors import KernelfarmError
from tests.support.launches import Launches, launches_of_plans
from tests.support.whole_models import (
    TIMEOUT_S,
    CompiledGraphs,
    Measured,
    errors,
    inductor_launches,
)

DTYPES = ("float32", "bfloat16", "float16")


def main() -> int:
    options = _options()
    vendors = sorted({"cpu", *(target.split(":")[0] for target in options.targets)})
    names = options.models or list(MODELS)
    wanted = [f"{name} {dtype}" for name in names for dtype in options.dtypes]
    peers = inductor_launches(wanted, is_counted=options.inductor)
    rows = []
    with running_farm(vendors=",".join(vendors)) as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        client = connect(farm.endpoint, TIMEOUT_S)
        for name in names:
            for dtype in options.dtypes:
                peer = peers.get(f"{name} {dtype}")
                rows.append(measure(name, dtype, client, peer, options))
                print(_line(rows[-1]), flush=True)
        client.close()
    if not options.targets:
        print(f"geomean of launch ratios: {geomean(rows):.3f} (bar 1.1)")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown_of(rows, geomean(rows)))
    return 0 if all(_is_good(row) for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=[])
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES[:2]))
    parser.add_argument("--inductor", action="store_true", help="count what is not in the file")
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


def measure(
    name: str, dtype: str, client: FarmClient, peer: Launches | None, options: argparse.Namespace
) -> Measured:
    row = Measured(name, dtype)
    try:
        if options.targets:
            row.targets = failures_by_target(name, dtype, client, options.targets)
        else:
            _measure_on_cpu(row, client)
            row.inductor = peer
    except Exception as error:  # a model that fails is one row of the table
        traceback.print_exc()
        row.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return row


def _measure_on_cpu(row: Measured, client: FarmClient) -> None:
    source = model_of(row.model, getattr(torch, row.dtype))
    found = CompiledGraphs(source, client, [host_cpu_target()])
    row.graphs, row.nodes = len(found.graphs), sum(len(g.nodes) for g in found.graphs)
    row.launches, row.farm_s = launches_of_plans(found.programs), found.farm_s
    row.error, row.eager_error, row.largest = errors(source)


def failures_by_target(
    name: str, dtype: str, client: FarmClient, targets: list[str]
) -> dict[str, str]:
    """For each target the number of kernels that compiled, or the failure."""
    found = {}
    graphs = CompiledGraphs(model_of(name, getattr(torch, dtype)), client, []).graphs
    for target in targets:
        try:
            programs = [client.compile(graph, [target])[0] for graph in graphs]
            found[target] = f"{sum(len(program.kernels) for program in programs)} kernels"
        except KernelfarmError as error:
            found[target] = f"FAILED {type(error).__name__}: {error}"
    return found


def geomean(rows: list[Measured]) -> float:
    """The geometric mean of the known launch ratios."""
    ratios = [row.ratio for row in rows if row.ratio]
    return statistics.geometric_mean(ratios) if ratios else float("nan")


def _is_good(row: Measured) -> bool:
    failed = [text for text in row.targets.values() if text.startswith("FAILED")]
    return not row.failure and row.is_exact and not failed


def _line(row: Measured) -> str:
    if row.failure:
        return f"{row.model:<14}{row.dtype:<9} FAILED {row.failure}"
    if row.targets:
        listed = "; ".join(f"{t}: {text[:300]}" for t, text in row.targets.items())
        return f"{row.model:<14}{row.dtype:<9} {listed}"
    assert row.launches is not None
    ratio = f"{row.ratio:.2f}" if row.ratio else "-"
    peer = row.inductor.total if row.inductor else "-"
    mark = "" if row.is_exact else "  WRONG"
    return (
        f"{row.model:<14}{row.dtype:<9} graphs {row.graphs} nodes {row.nodes:<4}"
        f" launches {row.launches.total:>3} / {peer:>3} = {ratio:>4}  distinct "
        f"{row.launches.distinct:>3}  farm {row.farm_s:5.1f} s  error {row.error:.2g}"
        f" / {row.eager_error:.2g}{mark}  {row.launches.others or ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
