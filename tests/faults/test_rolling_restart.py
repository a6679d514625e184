"""Every service of a farm is replaced under load, and so are its cache and its broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kernelfarm.cache.embedded import ServerRole
from tests.support.checked_load import CheckedLoad, checked_load
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.replicated_farm import SERVICES, WORKER, ReplicatedFarm, replicated_farm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # it starts 16 services: minutes

CALLERS = 30
REPLICAS = 2
DRAIN_GRACE_S = 20.0
"""The services' own grace, `KERNELFARM_DRAIN_GRACE_S`; the chart's default, too."""
WORKER_GRACE_S = 120.0
"""A worker finishes its jobs: the limit of one compilation, the chart's default."""
RETRYABLE = {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}
RECOVERY_S = 30.0
AWAY_S = (0.0, 8.0)
_NEW_IN_A_ROW = 20


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedFarm]:
    settings = {"drain_grace_s": str(DRAIN_GRACE_S)}
    with replicated_farm(tmp_path_factory.mktemp("kf"), REPLICAS, **settings) as farm:
        yield farm


def test_a_rolling_restart_of_every_service_fails_no_call(replicated: ReplicatedFarm) -> None:
    endpoints = (replicated.endpoint, replicated.name)
    with checked_load(endpoints, replicated.public_keys, CALLERS) as load:
        serve_for(load, time.monotonic())
        for service in SERVICES:
            for replica in list(replicated.replicas[service]):
                grace_s = WORKER_GRACE_S if service == WORKER else DRAIN_GRACE_S
                first = len(load.calls)
                status, drained_s = replicated.end(replica, 2 * grace_s)
                during, in_flight, ended_s = (
                    len(load.calls) - first,
                    load.in_flight,
                    time.monotonic(),
                )
                started = replicated.start(service)
                started_s = time.monotonic() - ended_s
                served_s = serve_for(load, time.monotonic())
                print(
                    f"{replica.name}: status {status} after {drained_s:.1f} s, {during} calls ended"
                    f" meanwhile, {in_flight} in flight; {started.name} ready {started_s:.1f} s"
                    f" later, {_NEW_IN_A_ROW} new programs {served_s:.1f} s later; longest call"
                    f" {load.longest_s(first):.1f} s"
                )
                assert status == 0
                assert drained_s <= grace_s
                assert not load.failures()[:3] and not load.wrong[:3]
    print(load.describe())
    assert not load.failures() and not load.wrong
    assert load.statuses().keys() == {"OK"}


@pytest.mark.parametrize("role", ServerRole, ids=lambda role: role.value)
def test_a_restarted_server_causes_retryable_errors_only(
    replicated: ReplicatedFarm, role: ServerRole
) -> None:
    endpoints = (replicated.endpoint, replicated.name)
    with checked_load(endpoints, replicated.public_keys, CALLERS) as load:
        serve_for(load, time.monotonic())
        for away_s in AWAY_S:
            first, restarted_s = len(load.calls), time.monotonic()
            replicated.restart_server(role, away_s)
            took_s = time.monotonic() - restarted_s
            back_s = serve_for(load, time.monotonic())
            print(
                f"{role.value}: away for {took_s:.1f} s, new programs {back_s:.1f} s later; since"
                f" then {dict(load.statuses(first))}"
            )
            assert back_s < RECOVERY_S
    print(load.describe())
    assert not load.wrong
    assert load.statuses().keys() <= {"OK", *RETRYABLE}, load.failures()[:3]


def serve_for(load: CheckedLoad, since_s: float) -> float:
    """Seconds until a number of new programs that were asked for since then were compiled."""
    served = lambda: load.served_since(since_s, is_new=True) >= _NEW_IN_A_ROW  # noqa: E731
    return wait_until(served, TIMEOUT_S, f"{_NEW_IN_A_ROW} new programs")
