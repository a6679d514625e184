"""Shapes repeated on a function that branches on its size; each round is a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.farm import TIMEOUT_S, Farm

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
sys.stdin.readline()
for rows in map(int, sys.argv[1:]):
    x = torch.randn(rows, 12)
    if len(sys.argv) == 2:
        torch._dynamo.mark_dynamic(x, 0)
    torch.testing.assert_close(fast(x), model(x))
print(json.dumps(counters.snapshot()))
"""
NAMES = ("farm.misses", "farm.hits", "disk.hits")


class Round:
    """A new process that runs shapes in order, once `counts` is called: until then it imports."""

    def __init__(self, farm: Farm, folder: Path, *rows: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CYCLE, *map(str, rows)],
            env={
                **os.environ,
                "KERNELFARM_ENDPOINT": farm.endpoint,
                "KERNELFARM_DISK_CACHE_DIR": str(folder),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def counts(self) -> tuple[int, ...]:
        """Runs the shapes; the counters NAMES."""
        try:
            out, errors = self._process.communicate("go\n", timeout=TIMEOUT_S)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, errors[-3000:]
        counted = json.loads(out)
        return tuple(counted.get(name, 0) for name in NAMES)


def test_three_shapes_cycled_are_all_hits_from_the_second_round(farm: Farm, tmp_path: Path) -> None:
    shapes = (24, 48, 8, 24, 48, 8)
    first, second, third = (
        Round(farm, tmp_path / folder, *shapes) for folder in ("one", "two", "two")
    )
    assert first.counts() == (3, 0, 0)
    assert second.counts() == (0, 3, 0)
    assert third.counts() == (0, 0, 3)


@pytest.mark.slow
def test_alternating_shapes_of_a_marked_size_are_hits_in_every_new_process(
    farm: Farm, tmp_path: Path
) -> None:
    first = [Round(farm, tmp_path / str(rows), rows).counts() for rows in (30, 60, 90)]
    assert first[1:] == [(0, 1, 0)] * 2  # one graph serves all three
    again = [Round(farm, tmp_path / f"new {rows}", rows).counts() for rows in (30, 60, 90)]
    assert again == [(0, 1, 0)] * 3
