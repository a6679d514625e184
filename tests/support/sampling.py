"""Runs a part of a sweep's cases by default, so that the default suite stays short.

A test marked `sweep` has many cases that differ in numbers, not in kind. A run of the whole suite
takes a third of them, chosen by their names. `make test-thorough`, and runs of named folders and
files, take all.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence

import pytest

SHARE = 3
"""One of so many cases runs in a default run."""


def is_default_run(config: pytest.Config) -> bool:
    """True for a run of the whole suite that does not ask for what is slow."""
    asks_for_all = "slow" in config.option.markexpr.replace("not slow", "", 1)
    return not asks_for_all and list(config.args) == config.getini("testpaths")


def sampled(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items, with a part of the cases of each sweep; at least one."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    kept = {id(item) for found in cases.values() for item in _part(found)}
    swept = {id(item) for found in cases.values() for item in found}
    return [item for item in items if id(item) not in swept or id(item) in kept]


def _part(cases: list[pytest.Item]) -> list[pytest.Item]:
    """A third of the cases, rounded up: those whose names have the smallest checksums."""
    ranked = sorted(cases, key=lambda item: (zlib.crc32(item.nodeid.encode()), item.nodeid))
    return ranked[: -(-len(cases) // SHARE)]
