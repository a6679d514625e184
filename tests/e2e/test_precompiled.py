"""Packages of PyTorch's precompilation: made in one process, loaded in others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.precompiled_client import Classifier
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.tampering_proxy import TamperingFarm
from tests.support.torch_children import run_python

# Sums over 96 products in another order, and their gradients.
TOLERANCE = 1e-4


UNUSED = {"pydantic", "opentelemetry", "redis", "celery", "llvmlite"}
"""Packages that a warm start does not need."""


class Machine:
    """A machine with a disk, and a farm that can be stopped; `folder` holds its files."""

    def __init__(self, folder: Path, farm: Farm) -> None:
        self.folder = folder
        self.proxy = TamperingFarm(farm.endpoint)
        self._environment = {
            "KERNELFARM_ENDPOINT": self.proxy.start(),
            "KERNELFARM_DISK_CACHE_DIR": str(folder / "disk"),
        }

    def process(self, action: str, mode: str = "strict", **environment: str) -> dict[str, Any]:
        """What a new process reports; it must not fail."""
        code, output, errors = self.ended(action, mode, **environment)
        assert code == 0, errors
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        assert found["error"] < TOLERANCE
        return found

    def ended(self, action: str, mode: str = "strict", **environment: str) -> tuple[int, str, str]:
        """The status, output and errors of a new process."""
        stated = {**os.environ, **self._environment, "KERNELFARM_MODE": mode, **environment}
        arguments = ("-m", "tests.e2e.precompiled_client", action, str(self.folder))
        done = run_python(arguments, stated, timeout_s=4 * TIMEOUT_S)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def machine(farm: Farm, tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path, farm)
    yield found
    found.proxy.stop()


def counts(found: Mapping[str, Any], name: str) -> int:
    return int(found["counters"].get(name, 0))


# slow: each process imports PyTorch, and there are seven.
@pytest.mark.slow
def test_a_package_loads_from_disk_or_farm_and_without_both_says_so(machine: Machine) -> None:
    made = machine.process("save")
    assert counts(made, "precompiled.made") == 1
    package = (machine.folder / "static").read_bytes()
    for weight in Classifier().parameters():
        assert weight.detach().numpy().tobytes()[:64] not in package

    elsewhere = {"KERNELFARM_DISK_CACHE_DIR": str(machine.folder / "empty")}
    from_farm = machine.process("load", **elsewhere)
    assert (counts(from_farm, "farm.hits"), from_farm["frames"]) == (1, 0)

    machine.proxy.stop()
    from_disk = machine.process("load")
    assert (counts(from_disk, "disk.hits"), from_disk["traced"], from_disk["frames"]) == (1, 0, 0)
    assert not UNUSED & set(from_disk["imported"])

    nowhere = {"KERNELFARM_DISK_CACHE_DIR": str(machine.folder / "nothing")}
    code, _, errors = machine.ended("load", **nowhere)
    assert code != 0
    assert "NoAnswerError: the farm at" in errors
    eager = machine.process("load", "wait", **nowhere)
    assert (counts(eager, "disk.misses"), eager["frames"]) == (1, 0)


# slow: each process imports PyTorch.
@pytest.mark.slow
def test_a_package_refuses_what_its_guards_do_not_cover(machine: Machine) -> None:
    machine.process("save")
    for action, reason in (("other_rows", "size mismatch"), ("other_scale", "scale")):
        code, _, errors = machine.ended(action)
        assert code != 0
        assert "GuardManager check failed" in errors
        assert reason in errors


# slow: each process imports PyTorch.
@pytest.mark.slow
def test_a_package_of_a_varying_size_runs_every_size(machine: Machine) -> None:
    machine.process("save_varying")
    found = machine.process("load_varying")
    assert (counts(found, "disk.hits"), found["frames"]) == (1, 0)
    machine.proxy.stop()
    nowhere = {"KERNELFARM_DISK_CACHE_DIR": str(machine.folder / "nothing")}
    machine.process("load_varying", "wait", **nowhere)


# slow: each process imports PyTorch.
@pytest.mark.slow
def test_a_package_trains(machine: Machine) -> None:
    made = machine.process("save_training")
    assert counts(made, "precompiled.wrapped") == 1
    found = machine.process("load_training")
    assert (counts(found, "disk.hits"), found["traced"], found["frames"]) == (2, 0, 0)


# slow: each process imports PyTorch.
@pytest.mark.slow
@pytest.mark.parametrize("action", ["cache", "cache_training"])
def test_caching_precompilation_traces_nothing_in_the_second_process(
    machine: Machine, action: str
) -> None:
    first = machine.process(action)
    assert first["package"] == {"dynamo_cache_miss": 1}
    machine.proxy.stop()
    second = machine.process(action)
    assert second["package"] == {"dynamo_cache_hit": 1}
    assert (second["traced"], second["frames"]) == (0, 0)
    # Five graphs: two shapes, and two branches of one and one of the other; or forward and backward
    assert counts(second, "precompiled.loaded") == {"cache": 5, "cache_training": 2}[action]
