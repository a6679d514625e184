"""What several of these modules use: services take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from kernelfarm.cache.script_declarations import SCRIPTS
from tests.support.codegen_processes import CodegenFarm, program_farm
from tests.support.farm import Farm, running_farm


@pytest.fixture(scope="package")
def hurt_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm whose processes are killed, stopped and kept busy; the last of these tests stops it.

    `test_killed_services.py` comes first, then `test_long_work.py`.
    """
    settings = {
        "KERNELFARM_PROBE_EVERY_S": "0.5",
        "KERNELFARM_HUNG_AFTER_S": "5",
        "KERNELFARM_LEASE_TTL_S": "3",
        "KERNELFARM_WORKER_LEASE_TTL_S": "2.5",
        "KERNELFARM_QUEUED_LEASE_TTL_S": "3",
        "KERNELFARM_DRAIN_GRACE_S": "2",
    }
    with running_farm(tmp_path_factory.mktemp("hurt"), workers=2, **settings) as running:
        yield running


@pytest.fixture(scope="package")
def program_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """A frontend, `front`, and the services behind it."""
    with program_farm(tmp_path_factory.mktemp("programs")) as started:
        with redis.Redis.from_url(started.cache.url) as raw:
            for name in ("acquire", "publish"):
                raw.script_load(SCRIPTS[name].source)  # so that no client has to load it
        started.start_service("frontend", "front")
        yield started
