"""What all tests share: one running farm, and the list of checks that could not run.

The farm runs workers for the CPU and for whatever vendors the collected tests name with
`@pytest.mark.vendors("cuda", ...)`.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.support.farm import QUICK_SWEEPS, TIMEOUT_S, Farm, running_farm

pytest_plugins = [
    "tests.support.not_run",
    "tests.support.redis_servers",
    "tests.support.client_fixtures",
    "tests.support.codegen_fixtures",
    "tests.support.farm_fixtures",
]

# Every Python process imports this by itself when it starts; each leaves its number.
BLOCK_TORCH = """
import os, pathlib, sys
sys.modules["torch"] = None
pathlib.Path(__file__).with_name(f"{os.getpid()}.pid").touch()
"""

# Property tests take as long as they need: the machine may be slow or busy.
settings.register_profile(
    "patient", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--warm-traces`, see `tests/e2e/semantics/conftest.py`."""
    parser.addoption(
        "--warm-traces",
        action="store_true",
        help="run tests/e2e/semantics cold, then from the traces that the farm has of it",
    )


# What kills, stops and times processes: one after the other, also where two workers of pytest-xdist
# share the tests (`--dist loadgroup`). All others go by file.
ONE_AFTER_THE_OTHER = (
    *("attack", "chaos", "codegen_svc/edge", "codegen_svc/sandbox", "codegen_svc/worker"),
    *("e2e/test_thundering_herd.py", "faults", "frontend_svc/api", "frontend_svc/test_gateways.py"),
    *("fuzz", "kernelfarm/service", "kernelfarm/supervisor", "soak"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives each test its group of pytest-xdist, and the longest group the first turn."""
    if not hasattr(config, "workerinput"):  # no worker of pytest-xdist
        return
    for item in items:
        path = item.path.relative_to(Path(__file__).parent)
        is_timed = any(path.is_relative_to(timed) for timed in ONE_AFTER_THE_OTHER)
        item.add_marker(pytest.mark.xdist_group("timed" if is_timed else str(item.path)))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group").args[0] != "timed")


def pytest_collection_finish() -> None:
    """Makes garbage collections rare: each looks through PyTorch and all tests, in vain.

    What is imported by now is left out for good; at CPython's own rate a tenth of the time goes.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 5)


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, on PYTHONPATH, keeps torch out of every process, and has their numbers."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "sitecustomize.py").write_text(BLOCK_TORCH)
    return folder


@pytest.fixture(scope="session")
def farm(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    without_torch: Path,
) -> Iterator[Farm]:
    """A farm that all tests of the session share; tests that hurt it start their own.

    It runs where torch cannot be imported: no service needs it.
    """
    vendors = {"cpu"}
    for item in request.session.items:
        if "farm" in getattr(item, "fixturenames", ()):
            vendors.update(v for mark in item.iter_markers("vendors") for v in mark.args)
    folder, queues = tmp_path_factory.mktemp("farm"), ",".join(sorted(vendors))
    path = os.pathsep.join([str(without_torch), str(Path(__file__).parents[1])])
    with running_farm(folder, queues, workers=2, PYTHONPATH=path, **QUICK_SWEEPS) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def own_disk_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Clients of this session, child processes too, leave the user's own disk tier alone.

    They wait for the farm as long as a slow machine takes.
    """
    folder = tmp_path_factory.mktemp("client-cache")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(folder))
        environment.setenv("KERNELFARM_TIMEOUT_S", str(TIMEOUT_S))
        yield folder


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same random numbers, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:  # not every room needs it
        sys.modules["torch"].manual_seed(0)
