"""One graph waits for the farm once, whatever its compile asks for; here of one that is mute."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelfarm.client.farm.wait_budget import WaitBudget, remaining_timeout
from kernelfarm.client.programs import finder
from kernelfarm.client.programs.eager import KernelfarmWarning, reset_warnings
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.errors import DeadlineError, KernelfarmError
from kernelfarm.signing import Space, new_signer
from kernelfarm.signing.key_files import write_keyring
from tests.support.client_process import new_process
from tests.support.client_timeouts import set_watch_timeout
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.traced_graphs import traced_one
from tests.support.unresponsive_servers import MuteFarm


@pytest.fixture(params=["live", "silent"])
def farm(request: pytest.FixtureRequest) -> MuteFarm:
    """A farm that answers no call; its watch is live, or silent too."""
    return MuteFarm(is_live=request.param == "live")


@pytest.fixture(params=["pinned", "asked for"])
def keys(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The farm's keys: then a trace is asked for first, or the keys are."""
    if request.param == "pinned":
        known = [new_signer(space).trusted for space in Space]
        write_keyring(tmp_path / "public.json", known)
        monkeypatch.setenv("KERNELFARM_TRUSTED_KEYS_FILE", str(tmp_path / "public.json"))
    monkeypatch.setattr(finder, "_store", ProgramStore())
    yield
    finder.accesses.clear()


def compiled(endpoint: str, folder: Path, mode: str) -> torch.Tensor:
    new_process(endpoint, folder)
    reset_warnings()
    torch._dynamo.reset()
    options = {"endpoint": endpoint, "timeout_s": 0.4, "mode": mode}
    return torch.compile(lambda a: (a * 4.5).sin(), backend="kernelfarm", options=options)(
        torch.ones(3)
    )


@pytest.mark.usefixtures("keys")
def test_strict_waits_once_for_a_farm_that_answers_nothing(
    farm: MuteFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_watch_timeout(monkeypatch, 0.1)
    with farm.served() as endpoint:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
            compiled(endpoint, tmp_path / "disk", "strict")
        assert isinstance(caught.value.inner_exception, DeadlineError)
    assert len(farm.calls) <= 1, farm.calls  # none, where a slow machine had no time left to ask


@pytest.mark.usefixtures("keys")
def test_wait_waits_once_too_and_runs_eager(
    farm: MuteFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_watch_timeout(monkeypatch, 0.1)
    with farm.served() as endpoint, pytest.warns(KernelfarmWarning):
        result = compiled(endpoint, tmp_path / "disk", "wait")
    torch.testing.assert_close(result, (torch.ones(3) * 4.5).sin())
    assert len(farm.calls) <= 1, farm.calls


def test_who_waits_for_another_thread_keeps_to_its_own_time(tmp_path: Path) -> None:
    graph = traced_one(lambda a: (a * 5.5).sin(), torch.ones(3))
    farm = MuteFarm(is_live=True)
    with farm.served() as endpoint:
        process = new_process(endpoint, tmp_path, signing="off")
        ends: list[KernelfarmError] = []

        def ask() -> None:
            try:
                process.program(graph)
            except KernelfarmError as error:
                ends.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: farm.calls == ["Compile"], TIMEOUT_S, "the first thread's call")
        with WaitBudget(0.1).charged(), pytest.raises(DeadlineError, match="another thread"):
            process.program(graph)
        assert farm.calls == ["Compile"] and not ends
        process.access.client.close()
        asking.join()
    assert len(ends) == 1


def test_what_passes_between_does_not_count() -> None:
    time = WaitBudget(TIMEOUT_S)
    with time.charged():
        first = remaining_timeout(2 * TIMEOUT_S)
        assert remaining_timeout(0.5) == 0.5
    assert remaining_timeout(2 * TIMEOUT_S) == 2 * TIMEOUT_S
    with time.charged():
        assert remaining_timeout(2 * TIMEOUT_S) < first <= TIMEOUT_S
    with WaitBudget(0.0).charged():
        assert remaining_timeout(TIMEOUT_S) == 0.0
