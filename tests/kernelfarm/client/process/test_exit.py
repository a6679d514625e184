"""Processes end, and say nothing ugly, whatever is at the farm's address while they are asking."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelfarm.errors import DeadlineError, UnavailableError
from tests.kernelfarm.client.process.ended_script import ended, ended_with_torch
from tests.support.client_process import new_process
from tests.support.client_timeouts import set_watch_timeout
from tests.support.farm import Farm
from tests.support.traced_graphs import traced_one
from tests.support.unresponsive_servers import PEERS, peer

ASKING = """
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.process.exit import run_in_background
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import KernelfarmError
access = FarmAccess(client_settings())
def ask():
    try:
        access.client.capabilities()
    except KernelfarmError as error:
        print(f"refused: {error.status}\\n", end="", flush=True)
for _ in range(3):
    run_in_background(ask, "kernelfarm-ask")
"""

COMPILING = """
import torch
fast = torch.compile(lambda a: (a * 1.625).sin().sum(0), backend="kernelfarm", mode=sys.argv[1])
assert fast(torch.ones(3, 4)).shape == (4,)
print("called", flush=True)
"""

FAILING = """
raise SystemError("planned")
"""


@pytest.mark.parametrize("kind", PEERS)
def test_a_process_that_is_asking_ends_and_leaves_no_thread(kind: str, tmp_path: Path) -> None:
    with peer(kind, tmp_path) as endpoint:
        process = ended(ASKING, KERNELFARM_ENDPOINT=endpoint)
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    assert lines == ["refused: UNAVAILABLE"] * 3 + ["left: []"]


def test_a_script_in_mode_swap_ends_while_its_program_is_asked_for(tmp_path: Path) -> None:
    with peer("settings", tmp_path) as endpoint:
        process = ended_with_torch(COMPILING, "swap", KERNELFARM_ENDPOINT=endpoint)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines() == ["called", "left: []"]


def test_a_script_that_fails_says_so_and_nothing_else(tmp_path: Path) -> None:
    with peer("closed", tmp_path) as endpoint:
        process = ended_with_torch(COMPILING + FAILING, "wait", KERNELFARM_ENDPOINT=endpoint)
    assert process.returncode == 1
    assert process.stdout.splitlines() == ["called", "left: []"]
    warning, *_, last = process.stderr.splitlines()
    assert "KernelfarmWarning: kernelfarm: no farm answers at" in warning
    assert last == "SystemError: planned"
    assert process.stderr.count("Traceback") == 1


LATE = """
import kernelfarm.client.process.exit
def late():
    from kernelfarm.client.farm.access import FarmAccess
    from kernelfarm.client.settings import client_settings
    from kernelfarm.errors import UnavailableError
    try:
        FarmAccess(client_settings()).client.capabilities()
    except UnavailableError as error:
        print(error, flush=True)
atexit._clear()
atexit.register(left)
atexit.register(late)
atexit.register(kernelfarm.client.process.exit._end)
"""


def test_who_begins_to_ask_once_the_process_ends_is_refused_at_once(farm: Farm) -> None:
    process = ended(LATE, KERNELFARM_ENDPOINT=farm.endpoint)
    assert (process.returncode, process.stderr) == (0, "")
    reported, left = process.stdout.splitlines()
    assert reported.endswith("closed") and left == "left: []"


def test_a_farm_that_answers_nothing_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_watch_timeout(monkeypatch, 0.1)  # nothing will come
    graphs = [traced_one(lambda a, n=n: (a * n).sin(), torch.ones(3)) for n in (2.5, 3.5)]
    with peer("settings", tmp_path) as endpoint:
        process = new_process(endpoint, tmp_path / "cache", timeout_s=0.5)
        with pytest.raises(DeadlineError):
            process.program(graphs[0])
        with pytest.raises(UnavailableError, match="did not answer just now"):
            process.program(graphs[1])
        process.access.watch.close()
