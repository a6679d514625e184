"""The farm's compile time for graphs of growing size: transformers of 2 to 180 layers, by pass.

One decoder layer of a small Llama is captured once and repeated, each time with other weights; 180
layers are 13,000 nodes. All steps between request and code generation run in this process:
decoding, keys, import and decomposition, and all passes of the optimizer.

Usage: python -m benchmarks.compile_time [--layers N ...] [--profile FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from pathlib import Path
from typing import Any

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.service.collector import collect_rarely
from tests.support.compile_steps import (
    BAR_S,
    Clock,
    captured_layer,
    compile_timed,
    repeated,
    timed,
)

LAYERS = (2, 20, 90, 180)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=list(LAYERS))
    parser.add_argument("--profile", type=Path, help="cProfile's text for the largest graph")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    layer = captured_layer()
    collect_rarely()
    rows = [timed(repeated(layer, count), count) for count in options.layers]
    print_rows(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    if options.profile:
        options.profile.write_text(profile_of(repeated(layer, max(options.layers))))
    return 0 if rows[-1]["total_s"] < BAR_S else 1


def profile_of(graph: Graph) -> str:
    """The table of cProfile for one compilation, by own time."""
    profiler = cProfile.Profile()
    profiler.runcall(compile_timed, graph, Clock())
    lines: list[str] = []
    stats = pstats.Stats(profiler, stream=_Lines(lines))  # type: ignore[arg-type]
    stats.strip_dirs().sort_stats("tottime").print_stats(60)
    return "".join(lines)


class _Lines:
    """A stream that appends to a list."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Prints the table, with a column for each graph."""
    steps = list(rows[-1]["steps_s"])
    print(f"{'step':<34}" + "".join(f"{row['nodes']:>8} n" for row in rows))
    for step in steps:
        print(f"{step:<34}" + "".join(f"{row['steps_s'].get(step, 0):>10.3f}" for row in rows))
    print(f"{'total s':<34}" + "".join(f"{row['total_s']:>10.3f}" for row in rows))
    per_node = [1e6 * row["total_s"] / row["nodes"] for row in rows]
    print(f"{'us a node':<34}" + "".join(f"{us:>10.0f}" for us in per_node))
    print(f"bar: {BAR_S:.0f} s for the largest")


if __name__ == "__main__":
    sys.exit(main())
