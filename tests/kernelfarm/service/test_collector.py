"""The garbage of calls is collected, whatever CPython's own counts are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kernelfarm.service.collector import MIDDLE_ROUNDS, OLD_ROUNDS, Collector


class Leaving:
    """Refers to itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def own_counts_collect_nothing() -> Iterator[None]:
    """Without the garbage of other tests, whose finalizers may wait: gRPC's join a thread."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    gc.freeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_the_garbage_of_a_number_of_calls_is_collected() -> None:
    collector, left = Collector(max_calls=3, max_s=1e9), weakref.ref(Leaving())
    collector.count()
    collector.count()
    assert left() is not None
    collector.count()
    assert left() is None


def test_old_garbage_is_collected_with_the_next_call() -> None:
    collector, left = Collector(max_calls=1_000, max_s=0.0), weakref.ref(Leaving())
    collector.count()
    assert left() is None


@pytest.mark.parametrize("generation", [1, 2])
def test_an_object_of_an_older_generation_is_collected_later(generation: int) -> None:
    kept = Leaving()
    for older in range(generation):
        gc.collect(older)
    left = weakref.ref(kept)
    del kept
    rounds = MIDDLE_ROUNDS if generation == 1 else MIDDLE_ROUNDS * OLD_ROUNDS
    collector = Collector(max_calls=1, max_s=1e9)
    for _ in range(rounds - 1):
        collector.count()
    assert left() is not None
    collector.count()
    assert left() is None
