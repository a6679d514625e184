"""The C library keeps memory that calls free, if it is asked."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_HAS_GNU_MALLOC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
pytestmark = pytest.mark.skipif(not _HAS_GNU_MALLOC, reason="NOT RUN: another C library")

_PROGRAM = """
import resource
from functools import partial

import torch

from kernelfarm.client.pytorch.kept_memory import keep_freed_memory

make = partial(torch.ones, 12 << 20, dtype=torch.uint8)

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [make() for _ in range(4)]  # 48 MiB
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
first = [faults() for _ in range(4)]
assert keep_freed_memory() and keep_freed_memory()
faults()
print(first[-1], min(faults() for _ in range(5)))
"""
"""Prints the page faults of taking and freeing 48 MiB before and after the C library is asked.

The least of several after it: a block of something else may have come to lie in between.
"""


def faults(**environment: str) -> tuple[int, int]:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    before, after = map(int, run.stdout.split())
    return before, after


def test_memory_that_is_taken_again_costs_no_page_faults() -> None:
    before, after = faults()
    assert before >= 20  # pages of 2 MiB would be 24
    assert after < before // 4


def test_thresholds_of_the_user_stay() -> None:
    before, after = faults(MALLOC_TRIM_THRESHOLD_="1048576")
    assert min(before, after) >= 20
