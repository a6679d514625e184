"""A default run takes a third of a sweep's cases, and all other tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.sampling import is_default_run, sampled


def item(name: str, *, is_sweep: bool) -> pytest.Item:
    marker = object() if is_sweep else None
    found = SimpleNamespace(nodeid=name, get_closest_marker=lambda _: marker)
    return cast(pytest.Item, found)


def test_a_third_of_each_sweep_is_taken_in_the_order_of_the_run() -> None:
    plain = [item(f"a.py::test_a[{n}]", is_sweep=False) for n in range(9)]
    sweep = [item(f"a.py::test_b[{n}]", is_sweep=True) for n in range(10)]
    few = [item(f"a.py::test_c[{n}]", is_sweep=True) for n in range(2)]
    kept = sampled([*plain, *sweep, *few])
    assert [i for i in kept if i in plain] == plain
    assert len([i for i in kept if i in sweep]) == 4
    assert len([i for i in kept if i in few]) == 1
    assert kept == [i for i in (*plain, *sweep, *few) if i in kept]
    assert sampled([*few, *sweep]) == [i for i in (*few, *sweep) if i in kept]


@pytest.mark.parametrize(
    ("args", "markers", "expected"),
    [
        (["tests"], "not slow", True),
        (["tests"], "slow or not slow", False),
        (["tests"], "slow", False),
        (["tests/e2e"], "not slow", False),
    ],
)
def test_named_files_and_slow_runs_are_whole(args: list[str], markers: str, expected: bool) -> None:
    config: Any = SimpleNamespace(
        option=SimpleNamespace(markexpr=markers), args=args, getini=lambda _: ["tests"]
    )
    assert is_default_run(config) == expected
