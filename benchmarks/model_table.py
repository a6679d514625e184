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

Written by `python -m benchmarks.models --inductor --markdown docs/models.md`. Random weights, CPU,
inference, strict mode, one farm whose cache was empty. Each model has two layers (convnets: a few),
64 channels, 16 to 32 tokens or 64 x 64 pixels.

Launches: own kernels, plus every extern step that is no product, attention or convolution; the
same rule for Inductor. Errors: largest absolute difference from the model in float64.
Farm: seconds from request to program with an empty cache, codegen included, on a busy machine of
two cores; kernels that an earlier row built are found.
"""


def markdown_of(rows: Iterable[Measured], geomean: float) -> str:
    """The page in Markdown."""
    lines = "".join(f"{_row(row)}\n" for row in rows)
    head = f"\n| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n"
    return f"{_HEAD}{head}{lines}\nGeomean of the ratios: {geomean:.3f}. The bar is 1.1.\n"


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
