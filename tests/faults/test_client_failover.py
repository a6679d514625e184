"""A client that watches a farm whose cache fails over and whose gateways are killed; its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
import torch

from kernelfarm.cache.embedded import find_server
from kernelfarm.client import counters
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.programs.loaded import LoadedProgram
from kernelfarm.errors import UnavailableError
from tests.support.calls import stub_of
from tests.support.client_process import NewProcess, new_process
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.processes import is_running
from tests.support.redis_process import redis_process, replicate
from tests.support.redis_proxy import RedisProxy
from tests.support.small_graphs import h_request
from tests.support.traced_graphs import traced_one

MODEL = "model:watched@1"


class Caches:
    """A primary, its replica, and the proxy that forwards the farm to one of them."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._folder = folder
        self._running = running
        self._number = 0
        self.primary, home = self._start()
        self.proxy = running.enter_context(RedisProxy(folder / "proxy", home / "s"))

    def _start(self) -> tuple[redis.Redis, Path]:
        self._number += 1
        home = self._folder / str(self._number)
        return self._running.enter_context(redis_process(find_server(), home)), home

    def add_replica(self) -> None:
        """Starts a replica of the primary."""
        self.replica, self._home = self._start()
        replicate(self.replica, self.primary, self._folder)

    def kill_primary(self) -> None:
        os.kill(self.primary.info("server")["process_id"], signal.SIGKILL)

    def promote_replica(self) -> None:
        self.replica.replicaof("NO", "ONE")
        self.proxy.lead_to(self._home / "s")
        self.primary = self.replica


@pytest.fixture(scope="module")
def all_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caches]:
    with ExitStack() as running:
        yield Caches(tmp_path_factory.mktemp("caches"), running)


@pytest.fixture
def caches(all_caches: Caches) -> Caches:
    """A primary with a new replica."""
    all_caches.add_replica()
    return all_caches


@pytest.fixture(scope="module")
def failing_farm(all_caches: Caches, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm of two gateways on those caches; the last test stops it."""
    data_dir, url = tmp_path_factory.mktemp("farm"), all_caches.proxy.url
    with running_farm(data_dir, frontends=2, KERNELFARM_CACHE_URL=url) as farm:
        yield farm


def found(process: NewProcess, number: float) -> LoadedProgram:
    return process.program(traced_one(lambda a: (a * number).sin().sum(0), torch.ones(4, 3)))


def stale(program: LoadedProgram) -> None:
    wait_until(lambda: not program.validity.is_valid, TIMEOUT_S, "the invalidation to arrive")


# slow: in every run, a client starts after a failover, and watches while gateways are killed.
@pytest.mark.slow
def test_a_client_that_watches_through_a_failover_uses_nothing_from_before(
    failing_farm: Farm, caches: Caches, tmp_path: Path
) -> None:
    settings = {
        "model": "watched@1",
        "mode": "strict",
    }  # so that it requests the program again at once
    process = new_process(failing_farm.endpoint, tmp_path / "disk", **settings)
    with closing(process.access.watch) as watch, CacheAdmin(failing_farm.endpoint) as admin:
        first = found(process, 1.5)
        admin.invalidate([MODEL])
        stale(first)
        before = found(process, 1.5)
        assert before.manifest.epoch > first.manifest.epoch
        assert watch.invalidations is not None
        token, former = watch.invalidations.resume_token, watch.invalidations.incarnation

        # The last invalidation before the primary dies does not reach the replica.
        caches.replica.replicaof("NO", "ONE")
        admin.invalidate([MODEL])
        stale(before)
        caches.kill_primary()
        with ThreadPoolExecutor(1) as pool:  # at once: each takes seconds until it gives up
            refused = pool.submit(admin.invalidate, [MODEL])
            with pytest.raises(UnavailableError):
                found(process, 1.5)
            assert isinstance(refused.exception(), UnavailableError)

        caches.promote_replica()
        wait_until(
            lambda: watch.invalidations.incarnation != former, TIMEOUT_S, "the new incarnation"
        )
        assert (
            former in watch.invalidations.former
            and watch.invalidations.base == watch.invalidations.epoch
        )
        after = found(process, 1.5)
        assert after.manifest.incarnation == watch.invalidations.incarnation
        assert "disk.hits" not in counters.snapshot()
        resumed = next(iter(admin.watch(token)))
        assert resumed.is_flush and resumed.incarnation == after.manifest.incarnation

        admin.invalidate([MODEL])
        stale(after)


def test_a_process_that_starts_after_a_failover_takes_nothing_from_its_disk(
    failing_farm: Farm, caches: Caches, tmp_path: Path
) -> None:
    before = found(new_process(failing_farm.endpoint, tmp_path / "disk"), 2.5)
    process = new_process(failing_farm.endpoint, tmp_path / "disk")
    process.access.watch.close()  # so that no process of this machine receives the failover
    caches.kill_primary()
    caches.promote_replica()
    wait_until(lambda: is_answered(failing_farm), TIMEOUT_S, "the farm")
    process = new_process(failing_farm.endpoint, tmp_path / "disk")
    with closing(process.access.watch) as watch:
        assert watch.wait(TIMEOUT_S)
        after = found(process, 2.5)
        assert after.manifest.incarnation != before.manifest.incarnation
        assert "disk.hits" not in counters.snapshot()


def is_answered(farm: Farm) -> bool:
    with CacheAdmin(farm.endpoint) as admin:
        try:
            next(iter(admin.watch()))
        except UnavailableError:
            return False
    return True


def test_a_client_receives_invalidations_whichever_gateway_is_killed(
    failing_farm: Farm, tmp_path: Path
) -> None:
    settings = {
        "model": "watched@1",
        "mode": "strict",
    }  # so that it requests the program again at once
    process = new_process(failing_farm.endpoint, tmp_path / "disk", **settings)
    with closing(process.access.watch) as watch:
        wait_until(lambda: watch.is_live, TIMEOUT_S, "the watch")
        for number in (0, 1):  # the client watches one of them
            program = found(process, 3.5)
            (killed,) = failing_farm.pids(f"frontend-{number}")
            os.kill(killed, signal.SIGKILL)
            with CacheAdmin(failing_farm.endpoint) as admin:
                admin.invalidate([MODEL])
            stale(program)
            wait_until(
                lambda n=number, pid=killed: failing_farm.is_back(f"frontend-{n}", pid),
                TIMEOUT_S,
                "another gateway",
            )


def test_sigterm_finishes_what_was_begun_and_exits_with_0(failing_farm: Farm) -> None:
    pids = [child["pid"] for child in failing_farm.status()["children"].values()]
    with ThreadPoolExecutor(1) as pool:
        with stub_of(failing_farm.endpoint) as stub:
            call = stub.Compile(h_request(75, 128), timeout=TIMEOUT_S)
            first = next(iter(call))
            exit_code = pool.submit(failing_farm.stop)
            rest = list(call)
        assert exit_code.result() == 0
    assert first.stage.stage == "import"
    assert rest[-1].program.artifacts
    assert failing_farm.status()["state"] == "stopped"
    assert not [pid for pid in pids if is_running(pid)]
