"""Fixtures: the farm's endpoint, a backend without earlier state, and the requested graphs.

With `--warm-traces` each test runs twice: first without any trace, and publishes its traces; then
as another client without a disk, which receives every trace from the farm. `test_warm_start`, which
counts traces itself, runs once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.programs import eager, finder, kernels, store
from kernelfarm.client.runtime import arena
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.signing.key_files import TRACE_KEY
from tests.support.client_timeouts import set_watch_timeout
from tests.support.farm import Farm

PASSES = ("cold", "warm")
_hits = pytest.StashKey[int]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test cold and warm, with `--warm-traces`."""
    if metafunc.config.getoption("--warm-traces") and "empty_disk" not in metafunc.fixturenames:
        metafunc.parametrize("fresh_backend", PASSES, indirect=True)


@pytest.fixture(autouse=True)
def fresh_backend(
    request: pytest.FixtureRequest, farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Each test compiles anew by the shared farm."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    which = getattr(request, "param", None)
    if which is not None:
        monkeypatch.setenv("KERNELFARM_DISK_CACHE_BYTES", "0")
        monkeypatch.setattr(finder, "_store", store.ProgramStore())
        monkeypatch.setattr(kernels, "_kernels", {})
    if which == "cold":
        monkeypatch.setenv("KERNELFARM_TRACE_KEY_FILE", str(farm.data_dir / "keys" / TRACE_KEY))
    set_watch_timeout(monkeypatch)
    torch._dynamo.reset()
    eager.reset_warnings()
    before = _from_farm()
    yield
    arena.release()
    if which == "warm":
        hits = request.config.stash.get(_hits, 0) + _from_farm() - before
        request.config.stash[_hits] = hits


def _from_farm() -> int:
    """How many traces of other processes this process has used."""
    reported = counters.snapshot()
    return reported.get("warm.farm.hits", 0) + reported.get("warm.memory.hits", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Reports how many graphs began from the farm's traces."""
    if config.getoption("--warm-traces"):
        terminalreporter.line(f"{config.stash.get(_hits, 0)} graphs began from traces of the farm")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs whose programs are requested, except for those in memory."""
    graphs: list[Graph] = []
    find = store.find_program

    def noted(access, request):
        graphs.append(request.graph)
        return find(access, request)

    monkeypatch.setattr(store, "find_program", noted)
    return graphs
