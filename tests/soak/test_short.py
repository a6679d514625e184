"""A soak: a short one with a bound for its warm-up, and the whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import soak, unexpected_statuses
from tests.support.farm import Farm
from tests.support.memory_samples import MIB, Sample, growth_of, take_samples

REQUESTS = 3_000
MOST_GROWTH_BYTES = 10 * MIB
"""The caches of a short run still fill up; it has 30 refused calls of 128 KiB each."""


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name: a farm's sockets lie below it, with at most 107 characters."""
    return tmp_path_factory.mktemp("soak")


# slow: in every run, test_bad_requests.py bounds the memory of a frontend that refuses graphs.
@pytest.mark.slow
def test_memory_grows_little_over_a_few_thousand_requests(short_path: Path) -> None:
    growths, statuses = soak(REQUESTS, 30, short_path)
    assert sum(statuses.values()) >= REQUESTS
    assert unexpected_statuses(statuses) == []
    grown = {growth.part: growth.grown_bytes for growth in growths}
    assert max(grown.values()) < MOST_GROWTH_BYTES, grown


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_100_000_requests(short_path: Path) -> None:
    growths, statuses = soak(100_000, 100, short_path)
    assert unexpected_statuses(statuses) == []
    assert [growth for growth in growths if not growth.is_flat] == []


def test_growth_is_that_of_the_second_half_for_the_whole_run() -> None:
    def series(bytes_each: int, files_each: int) -> list[Sample]:
        warm = [Sample("a", n, 50 * MIB * n, 0, 9, 4) for n in range(10)]
        later = range(10, 20)
        return warm + [
            Sample("a", n, 500 * MIB + bytes_each * n, 0, 9 + files_each * n, 4) for n in later
        ]

    assert growth_of(series(0, 0)).is_flat
    assert not growth_of(series(MIB, 0)).is_flat
    assert not growth_of(series(0, 1)).is_flat
    assert round(growth_of(series(MIB, 0)).grown_bytes / MIB) == 19


def test_there_is_a_sample_of_each_process_of_a_farm(farm: Farm) -> None:
    parts = {sample.part: sample for sample in take_samples(farm, 0)}
    assert {"supervisor", "frontend", "optimizer", "codegen", "worker-cpu-0"} <= set(parts)
    for sample in parts.values():
        assert sample.uss_bytes > MIB and sample.rss_bytes >= sample.uss_bytes
        assert sample.files > 2 and sample.threads >= 1
