"""Faults under load with a fixed seed; the default run has them one by one (`tests/faults`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.all_faults import ALL_FAULTS, faults_named
from tests.chaos.farm_under_test import FarmUnderTest, farm_apart, farm_together
from tests.chaos.fault import Fault, FaultContext
from tests.chaos.load_clients import MARGIN_S, Call, LoadProcess, strict_load
from tests.chaos.network_namespaces import can_partition
from tests.chaos.report import broken_rules, table
from tests.chaos.run import ChaosRun, Episode, add_calls

SEED = 9
# `tests/faults/test_lost_servers.py` has a broker that is away for 8 s, under running jobs.
QUICK = ("kill optimizer", "CLIENT KILL of all at the cache")


def check(
    farm: FarmUnderTest, layout: str, faults: Sequence[Fault], load: Sequence[LoadProcess] = ()
) -> None:
    """Runs each fault once, under the usual load or another; no episode may break a rule."""
    run, episodes = ChaosRun(farm, layout, SEED, farm.folder, load), list[Episode]()
    for episode in run.run(faults, lambda: len(episodes) < len(faults)):
        episodes.append(episode)
    print("\n".join(table(episodes)))
    assert broken_rules(episodes, run.dead_clients) == []
    assert sum(episode.right for episode in episodes) > 0


@pytest.mark.slow  # `tests/faults` kills each service and closes each connection in every run
def test_a_killed_service_and_lost_connections_cost_no_answer(tmp_path: Path) -> None:
    """Both at once; the next test has each alone, and models that wait for the farm."""

    def begin(context: FaultContext) -> None:
        for fault in faults_named(list(QUICK)):
            fault.begin(context)

    with farm_together(tmp_path, "cpu", frontends=1) as farm:
        check(farm, "together", [Fault(" and ".join(QUICK), begin)], strict_load(farm, SEED))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_fault_on_one_machine_costs_an_answer(tmp_path: Path) -> None:
    with farm_together(tmp_path, "cpu", frontends=2) as farm:
        check(farm, "together", [f for f in ALL_FAULTS if f.can_happen(farm)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_cut_network_costs_an_answer(tmp_path: Path) -> None:
    if not can_partition():
        pytest.skip("NOT RUN: network namespaces need root")
    with farm_apart(tmp_path, "cpu", frontends=2) as farm:
        check(farm, "apart", [f for f in ALL_FAULTS if f.can_happen(farm)])


def test_wrong_late_and_unserved_calls_break_the_rules() -> None:
    calls = [
        Call("a", "hit", 10.0, 0.0, 9.0, "OK", "right"),
        Call("a", "hit", 10.0, 0.0, 9.0, "OK", "wrong"),
        Call("b", "new", 10.0, 0.0, 10.1 + MARGIN_S, "DEADLINE_EXCEEDED"),
        Call("b", "new", 10.0, 0.0),
        Call("b", "new", 10.0, 0.0, 1.0, "INTERNAL"),
    ]
    episode = Episode("fault", "together", service_s=31.0)
    add_calls(episode, calls, 10.1 + MARGIN_S)
    assert (episode.right, len(episode.wrong), len(episode.late)) == (1, 1, 2)
    assert len(broken_rules([episode], ["grpc"])) == 6


def test_a_seed_gives_one_order() -> None:
    orders = [random.Random("9 together").sample(ALL_FAULTS, len(ALL_FAULTS)) for _ in range(2)]
    assert orders[0] == orders[1]
    assert len({fault.name for fault in ALL_FAULTS}) == len(ALL_FAULTS)
