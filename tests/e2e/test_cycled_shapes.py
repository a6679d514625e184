"""Shapes cycled on a graph that gains guards while it is compiled; each round a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.farm import Farm

# Dynamo takes the first shape as it is, then makes the size a symbol; the branch bounds the symbol
# (above 16, at most 16), so that three shapes are three graphs.
CYCLE = """
import json, sys
import torch
from kernelfarm.client import counters

def model(x):
    y = x.sin() if x.shape[0] > 16 else x.cos()
    return (y * 0.75).sum(1) + x.shape[0]

fast = torch.compile(model, backend="kernelfarm", options={"strict": True})
for rows in map(int, sys.argv[1:]):
    x = torch.randn(rows, 12)
    if len(sys.argv) == 2:
        torch._dynamo.mark_dynamic(x, 0)
    torch.testing.assert_close(fast(x), model(x))
print(json.dumps(counters.snapshot()))
"""
NAMES = ("farm.misses", "farm.hits", "disk.hits")


def round_of(farm: Farm, folder: Path, *rows: int) -> tuple[int, ...]:
    """What a new process got from where, after it ran these shapes in turn: see NAMES."""
    done = subprocess.run(
        [sys.executable, "-c", CYCLE, *map(str, rows)],
        env={
            **os.environ,
            "KERNELFARM_ENDPOINT": farm.endpoint,
            "KERNELFARM_DISK_CACHE_DIR": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counted = json.loads(done.stdout)
    return tuple(counted.get(name, 0) for name in NAMES)


def test_three_shapes_cycled_are_all_hits_from_the_second_round(farm: Farm, tmp_path: Path) -> None:
    shapes = (24, 48, 8, 24, 48, 8)
    assert round_of(farm, tmp_path / "one", *shapes) == (3, 0, 0)
    assert round_of(farm, tmp_path / "two", *shapes) == (0, 3, 0)
    assert round_of(farm, tmp_path / "two", *shapes) == (0, 0, 3)


@pytest.mark.slow
def test_alternating_shapes_of_a_marked_size_are_hits_in_every_new_process(
    farm: Farm, tmp_path: Path
) -> None:
    first = [round_of(farm, tmp_path / str(rows), rows) for rows in (30, 60, 90)]
    assert first[1:] == [(0, 1, 0)] * 2  # one graph serves all three
    again = [round_of(farm, tmp_path / f"new {rows}", rows) for rows in (30, 60, 90)]
    assert again == [(0, 1, 0)] * 3
