"""Shapes repeated on a function that branches on its size; each round is a new process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.farm import TIMEOUT_S, Farm
from tests.support.torch_children import run_python

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


def counts(farm: Farm, folder: Path, *rows: int) -> tuple[int, ...]:
    """Runs shapes in order in a new process; its counters NAMES."""
    client = {"KERNELFARM_ENDPOINT": farm.endpoint, "KERNELFARM_DISK_CACHE_DIR": str(folder)}
    arguments = ("-c", CYCLE, *map(str, rows))
    done = run_python(arguments, {**os.environ, **client}, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    counted = json.loads(done.stdout)
    return tuple(counted.get(name, 0) for name in NAMES)


def test_three_shapes_cycled_are_all_hits_from_the_second_round(farm: Farm, tmp_path: Path) -> None:
    shapes = (24, 48, 8, 24, 48, 8)
    assert counts(farm, tmp_path / "one", *shapes) == (3, 0, 0)
    assert counts(farm, tmp_path / "two", *shapes) == (0, 3, 0)
    assert counts(farm, tmp_path / "two", *shapes) == (0, 0, 3)


@pytest.mark.slow
def test_alternating_shapes_of_a_marked_size_are_hits_in_every_new_process(
    farm: Farm, tmp_path: Path
) -> None:
    first = [counts(farm, tmp_path / str(rows), rows) for rows in (30, 60, 90)]
    assert first[1:] == [(0, 1, 0)] * 2  # one graph serves all three
    again = [counts(farm, tmp_path / f"new {rows}", rows) for rows in (30, 60, 90)]
    assert again == [(0, 1, 0)] * 3
