"""The table of whole models, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.launches import Launches
    from tests.support.whole_models import Measured

_COLUMNS = (
    *("model", "type", "graphs", "nodes", "launches", "distinct", "Inductor", "ratio"),
    *("farm s", "error", "eager's", "externs"),
)
_HEAD = """# Whole models

Written by `python -m benchmarks.models --inductor --markdown docs/results/models.md`.
Each row is one model in one element type: what kernelfarm launches beside Inductor, how exact the
result is beside eager, and how long the farm takes.

- Conditions: CPU, random weights, inference, mode `strict`, one farm that starts with an empty
  cache. Each model has two layers (a few in convolutional networks), 64 channels, and 16 to 32
  tokens or 64 x 64 pixels.
- `launches` and `Inductor` count the compiler's own kernels and every step of the framework that is
  no matrix product, attention or convolution. `distinct` is the number of kernelfarm's distinct
  kernels. `ratio` is kernelfarm's launches divided by Inductor's: lower is better, and the limit
  of the geometric mean is 1.1. These are counts, so no clock is involved.
- `error` and `eager's` are the largest absolute differences from the model in float64. Lower is
  better.
- `farm s` is wall-clock time from request to program, code generation included, on a busy machine
  with two cores. Lower is better. Kernels that an earlier row built come from the cache.
- `externs` are the steps that the framework runs.

With `--targets cuda:sm_90a rocm:gfx942 ascend:910b` the benchmark compiles the models for
accelerators instead, and reports which kernels fail.

Launches, errors and compile time of each model, kernelfarm beside Inductor and eager:
"""


def markdown_of(rows: Iterable[Measured], geomean: float) -> str:
    """The page in Markdown."""
    lines = "".join(f"{_row(row)}\n" for row in rows)
    head = f"\n| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n"
    return f"{_HEAD}{head}{lines}\nGeometric mean of the ratios: {geomean:.3f}. The limit is 1.1.\n"


def _row(row: Measured) -> str:
    cells = [row.model, row.dtype]
    if row.failure or row.launches is None:
        return f"| {' | '.join(cells)} | failed: {row.failure} |"
    cells += [str(row.graphs), str(row.nodes), str(row.launches.total), str(row.launches.distinct)]
    cells += [str(row.inductor.total) if row.inductor else "-"]
    cells += [f"{row.ratio:.2f}" if row.ratio else "-", f"{row.farm_s:.1f}"]
    cells += [f"{row.error:.1e}", f"{row.eager_error:.1e}", _externs(row.launches)]
    return f"| {' | '.join(cells)} |"


def _externs(launches: Launches) -> str:
    counts = {**launches.others, **launches.contractions}
    return ", ".join(f"{n} {op.removeprefix('aten.')}" for op, n in sorted(counts.items()))
