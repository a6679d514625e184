"""The plot of the simulations, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.fleet.simulation import Fleet, Outcome

_WARM = 0.99
_COLORS = {
    "without single flight": "#b3452c",
    "single flight": "#2c6fb3",
    "single flight, warmed cache": "#3c8c4b",
}

Run = tuple[str, Fleet, Outcome]


def plot(runs: Sequence[Run], path: Path) -> None:
    """Writes an SVG: warm servers over time, and the time until 99 % are warm by workers."""
    # Without these, two runs would write different bytes.
    mpl.rcParams["svg.hashsalt"] = "kernelfarm"
    figure = Figure(figsize=(10, 4), layout="constrained")
    over_time, by_workers = figure.subplots(1, 2)
    gateways = max(fleet.gateways for _, fleet, _ in runs)
    chosen = [run for run in runs if run[1].gateways == gateways]
    workers = sorted({fleet.workers for _, fleet, _ in chosen})
    middle = workers[len(workers) // 2]
    _draw_over_time(over_time, [run for run in chosen if run[1].workers == middle])
    over_time.set_title(f"{gateways} gateways, {middle} workers")
    _draw_by_workers(by_workers, chosen)
    by_workers.set_title(f"{gateways} gateways")
    over_time.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def _draw_over_time(axes: Axes, runs: Sequence[Run]) -> None:
    for name, _, outcome in runs:
        ordered = sorted(outcome.warm_at_s)
        parts = [(number + 1) / len(ordered) for number in range(len(ordered))]
        axes.step(ordered, parts, where="post", label=name, color=_COLORS[name])
    axes.axhline(_WARM, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="seconds after the first start", ylabel="part of servers warm")


def _draw_by_workers(axes: Axes, runs: Sequence[Run]) -> None:
    for name, color in _COLORS.items():
        points = sorted((f.workers, o.warm_by_s(_WARM)) for way, f, o in runs if way == name)
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=color)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="seconds until 99 % are warm")
    axes.set_xticks([count for count, _ in points], [str(count) for count, _ in points])
    axes.minorticks_off()
