"""Forks of a process that asks a farm: both go on, whatever gRPC's settings for forks are."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kernelfarm.client.process import forks
from kernelfarm.errors import KernelfarmError, UnavailableError
from tests.kernelfarm.client.process.ended_script import ended
from tests.support.client_process import new_process
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.unresponsive_servers import MuteFarm

FORKING = """
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.settings import client_settings
import os, time
access = FarmAccess(client_settings())
assert access.watch.wait(60) and access.client.capabilities().targets
is_over, faults = threading.Event(), []
def ask():
    try:
        while not is_over.is_set():
            assert access.client.capabilities().targets
    except BaseException as error:
        faults.append(error)
asking = threading.Thread(target=ask)
asking.start()
for _ in range(3):
    child = os.fork()
    if not child:
        mine = FarmAccess(client_settings())
        assert mine.client.capabilities().targets and access.client.capabilities().targets
        while not mine.watch.is_live:
            mine.watch.wait(1)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
while not access.watch.is_live:
    time.sleep(0.01)
is_over.set()
asking.join()
assert not faults and access.client.capabilities().targets
"""


@pytest.mark.parametrize("reported", [None, "0", "1"])
def test_forked_children_end_and_their_parent_goes_on(
    farm: Farm, reported: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    if reported is not None:
        monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", reported)
    process = ended(FORKING, KERNELFARM_ENDPOINT=farm.endpoint)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == "left: []\n" * 4


def test_a_call_that_a_fork_ends_is_made_again(tmp_path: Path) -> None:
    mute = MuteFarm(is_live=True)
    with mute.served() as endpoint:
        client = new_process(endpoint, tmp_path).access.client
        ends: list[KernelfarmError] = []

        def ask() -> None:
            try:
                client.capabilities()
            except KernelfarmError as error:
                ends.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: len(mute.calls) == 1, TIMEOUT_S, "the first call")
        forks._before()
        assert len(mute.calls) == 1 and not ends
        forks._after_in_parent()
        wait_until(lambda: len(mute.calls) == 2, TIMEOUT_S, "the second call")
        client.close()
        asking.join()
    assert len(ends) == 1 and isinstance(ends[0], UnavailableError)
