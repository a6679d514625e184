"""Settings of all tests. Fixtures that several packages use are in the plugins of `support`."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import examples
from tests.support.farm import TIMEOUT_S
from tests.support.sampling import is_default_run, sampled

pytest_plugins = [
    "tests.support.xdist_groups",  # first: `not_run` imports it
    "tests.support.not_run",
    "tests.support.orphans",
    "tests.support.browser_fixtures",
    "tests.support.redis_servers",
    "tests.support.client_fixtures",
    "tests.support.codegen_fixtures",
    "tests.support.farm_fixtures",
]

# Property tests take as long as they need: the machine may be slow or busy.
settings.register_profile(
    "no-deadline",
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("no-deadline")

# gRPC would log the end of each connection to the output of pytest.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--warm-traces`, see `tests/e2e/semantics/conftest.py`."""
    parser.addoption(
        "--warm-traces",
        action="store_true",
        help="run tests/e2e/semantics twice: traced, then from the traces of the farm",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes a part of each sweep in a default run."""
    if not is_default_run(config):
        return
    kept = sampled(items)
    left = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = kept


def pytest_collection_finish() -> None:
    """Makes garbage collections rare: each one traverses PyTorch and all tests, and frees little.

    At CPython's own rate they take a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 5)


@pytest.fixture(scope="session", autouse=True)
def no_telemetry_of_compilations() -> None:
    """Drops what PyTorch measures and records of each compilation: no test reads it.

    PyTorch flushes the processor's caches to time the guards: 30 ms. It writes records of each
    step if a handler wants them, and pytest adds one to every logger that does not propagate.
    """
    if "torch" in sys.modules:
        logging.getLogger("torch.__trace").propagate = True
    if "torch._dynamo.guards" in sys.modules:  # importing it takes seconds
        sys.modules["torch._dynamo.guards"].profile_guard_manager = lambda *_: 0.0
        utils = sys.modules["torch._dynamo.utils"]
        utils._scrubbed_inductor_config_for_logging = lambda: None


@atexit.register
def _drop_last_output() -> None:
    """Drops what nanobind prints at the end of a process that imported Triton: 40 lines."""
    if "triton" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.fixture(scope="session", autouse=True)
def own_disk_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk tier of the session for all clients, child processes too, instead of the user's own.

    They wait for the farm as long as a slow machine takes.
    """
    folder = tmp_path_factory.mktemp("client-cache")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(folder))
        environment.setenv("KERNELFARM_TIMEOUT_S", str(TIMEOUT_S))
        yield folder


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """No test changes the umask of later ones, as `kernelfarm up` does in this process."""
    umask = os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same random numbers, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:  # many tests need no torch, and importing it takes seconds
        sys.modules["torch"].manual_seed(0)
