"""What several of these modules use: services take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from kernelfarm.cache.script_declarations import SCRIPTS
from tests.support.codegen_processes import CodegenFarm, program_farm


@pytest.fixture(scope="package")
def program_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """A frontend, `front`, and the services behind it."""
    with program_farm(tmp_path_factory.mktemp("programs")) as started:
        with redis.Redis.from_url(started.cache.url) as raw:
            for name in ("acquire", "publish"):
                raw.script_load(SCRIPTS[name].source)  # so that no client has to load it
        started.start_service("frontend", "front")
        yield started
