"""What these tests share: the farm's endpoint, a fresh backend, the graphs that were asked for.

With `--warm-traces` each test runs twice: first nothing is known, and what is traced is published;
then as another client without a disk, to which the farm gives every trace. `test_warm_start`, which
counts traces itself, runs once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelfarm.client import counters, torch_backend
from kernelfarm.client.programs import eager, kernels, store
from kernelfarm.client.runtime import arena
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.signing.key_files import TRACE_KEY
from tests.support.client_timeouts import set_watch_timeout
from tests.support.farm import Farm

PASSES = ("cold", "warm")
_hits = pytest.StashKey[int]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes two tests of each, where it is asked for."""
    if metafunc.config.getoption("--warm-traces") and "empty_disk" not in metafunc.fixturenames:
        metafunc.parametrize("fresh_backend", PASSES, indirect=True)


@pytest.fixture(autouse=True)
def fresh_backend(
    request: pytest.FixtureRequest, farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Each test compiles anew, by the shared farm, from the same random numbers."""
    monkeypatch.setenv("KERNELFARM_ENDPOINT", farm.endpoint)
    which = getattr(request, "param", None)
    if which is not None:
        monkeypatch.setenv("KERNELFARM_DISK_CACHE_BYTES", "0")
        monkeypatch.setattr(torch_backend, "_store", store.ProgramStore())
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
    """Traces of others that this process used."""
    reported = counters.snapshot()
    return reported.get("warm.farm.hits", 0) + reported.get("warm.memory.hits", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tells how many graphs began from the farm's traces."""
    if config.getoption("--warm-traces"):
        terminalreporter.line(f"{config.stash.get(_hits, 0)} graphs began from traces of the farm")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs whose programs this process asks for, beyond those in its memory."""
    graphs: list[Graph] = []
    find = store.find_program

    def noted(access, request):
        graphs.append(request.graph)
        return find(access, request)

    monkeypatch.setattr(store, "find_program", noted)
    return graphs
