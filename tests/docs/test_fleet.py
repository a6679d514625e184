"""The simulation of a fleet: seeded, and in agreement with what single flight and warming do."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMES = ROOT / "benchmarks/fleet/service_times.json"
PAGE = ROOT / "docs/results/fleet.md"
PLOT = ROOT / "docs/results/fleet.svg"
WORKERS = (1, 4, 16)
COLD, MERGED, WARMED = (
    "without single flight",
    "single flight",
    "single flight, warmed cache",
)


def run(*flags: str) -> str:
    """The output of the program."""
    command = [sys.executable, "-m", "benchmarks.fleet", *flags]
    return subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout


def simulated(folder: Path) -> list[dict[str, Any]]:
    file = folder / "fleet.json"
    run("--servers", "40", "--gateways", "2", "--workers", *map(str, WORKERS), "--json", str(file))
    return json.loads(file.read_text())


@lru_cache(maxsize=1)
def times() -> dict[str, Any]:
    return json.loads(TIMES.read_text())


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return simulated(tmp_path_factory.mktemp("fleet"))


def of(rows: list[dict[str, Any]], way: str) -> list[dict[str, Any]]:
    """The simulations of one way, by number of workers."""
    return sorted((row for row in rows if row["way"] == way), key=lambda row: row["workers"])


def test_equal_seeds_give_equal_simulations(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    assert simulated(tmp_path) == rows


def test_with_single_flight_each_program_and_kernel_is_compiled_once(
    rows: list[dict[str, Any]],
) -> None:
    for row in of(rows, MERGED):
        assert row["most_jobs_of_a_kernel"] == 1
        assert row["jobs"] == len(times()["jobs_s"])
        assert set(row["builds"].values()) == {1}
    assert all(row["jobs"] > len(times()["jobs_s"]) for row in of(rows, COLD))


@pytest.mark.parametrize("way", (COLD, MERGED, WARMED))
def test_more_workers_make_no_fleet_slower(rows: list[dict[str, Any]], way: str) -> None:
    seconds = [row["warm_99_s"] for row in of(rows, way)]
    # A server may choose another gateway, or reach it in another order: some hits of difference.
    noise_s = 40 * times()["hit_in_redis_s"]
    assert all(later <= earlier + noise_s for earlier, later in itertools.pairwise(seconds))


def test_in_a_warmed_farm_the_first_request_is_a_hit_and_nothing_is_compiled(
    rows: list[dict[str, Any]],
) -> None:
    for row in of(rows, WARMED):
        assert row["jobs"] == 0 and row["builds"] == {}
        assert row["least_first_request_s"] == pytest.approx(times()["hit_in_memory_s"])


# slow: it simulates fleets of 1,000 servers.
@pytest.mark.slow
def test_the_page_has_the_tables_and_the_plot_that_the_program_makes(tmp_path: Path) -> None:
    plot = tmp_path / "fleet.svg"
    output = run("--plot", str(plot))
    assert output.strip() in PAGE.read_text()
    assert plot.read_bytes() == PLOT.read_bytes()
