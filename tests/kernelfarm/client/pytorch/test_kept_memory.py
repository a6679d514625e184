"""The C library keeps memory that calls free, if it is asked."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable

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


# Pages of 2 MiB would be 24. With fewer faults, a block of something else lies behind what is
# freed, so that the C library cannot give it back: in about a third of all processes.
_LEAST = 20
_TRIES = 12


def faults(enough: Callable[[int, int], bool], **environment: str) -> tuple[int, int]:
    """The faults before and after the C library is asked, of the first process that has enough."""
    for _ in range(_TRIES):
        before, after = _faults(environment)
        if enough(before, after):
            break
    return before, after


def _faults(environment: dict[str, str]) -> tuple[int, int]:
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
    before, after = faults(lambda before, _: before >= _LEAST)
    assert before >= _LEAST
    assert after < before // 4


def test_thresholds_of_the_user_stay() -> None:
    found = faults(lambda *both: min(both) >= _LEAST, MALLOC_TRIM_THRESHOLD_="1048576")
    assert min(found) >= _LEAST
