"""A warming job at a real farm, and the replicas that it warms."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.client import counters
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.programs import finder
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.warming.certificate import Certificate, read_certificate
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.client_process import new_process
from tests.support.farm import Farm
from tests.support.trace_machines import counted
from tests.support.warmed_models import scaled

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there
INCOMPLETE = 3
TARGET = host_cpu_target()

COMPILER = partial(torch.compile, backend="kernelfarm")

_numbers = itertools.count(1)


@dataclass
class Job:
    """A manifest in a folder, and the farm that it warms."""

    farm: Farm
    folder: Path
    environment: pytest.MonkeyPatch
    number: float

    @property
    def certificate(self) -> Certificate:
        return read_certificate(self.folder / "m.certificate.json").certificate

    def write(self, *models: str) -> None:
        head = f'format: 1\ntargets: ["{TARGET}"]\nmodels:\n'
        (self.folder / "m.yaml").write_text(head + "".join(models))

    def model(self, name: str = "scaled", more: str = "", **arguments: object) -> str:
        stated = json.dumps({"number": self.number, **arguments})
        return (
            f"  - name: {name}\n    entry: tests.support.warmed_models:scaled\n"
            f"    arguments: {stated}\n    tag: {name}@{self.number}\n{more}"
        )

    def warm(self, *options: str) -> Any:
        return self.run("warm", str(self.folder / "m.yaml"), *options)

    def run(self, *command: str, endpoint: str = "") -> Any:
        ended = CliRunner().invoke(
            make_app(), [*command, "--endpoint", endpoint or self.farm.endpoint]
        )
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return ended

    def kernel_jobs(self) -> int:
        with CacheAdmin(self.farm.endpoint) as admin:
            return admin.usage().spaces[1].counters.get("jobs", 0)

    def replica(
        self, endpoint: str, disk: Path, compiler: Callable[..., Any] = COMPILER
    ) -> dict[str, int]:
        """The counters of a client with this disk, which runs the model and must not be eager."""
        self.begin_replica(endpoint, disk)
        model, args = scaled(self.number)
        compiled = compiler(model, mode="strict")
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-5, atol=1e-6)
        return counted()

    def training_replica(self, endpoint: str, disk: Path, **arguments: bool) -> dict[str, int]:
        """As `replica`, for one training step with a loss of its own."""
        self.begin_replica(endpoint, disk)
        found = []
        for is_compiled in (True, False):
            model, args = scaled(self.number, **arguments)
            step = COMPILER(model, mode="strict") if is_compiled else model
            (step(*args) ** 2).mean().backward()
            found.append([parameter.grad for parameter in model.parameters()])
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
        return counted()

    def begin_replica(self, endpoint: str, disk: Path) -> None:
        """Switches to a process with this disk, which has compiled nothing."""
        new_process(endpoint, disk)
        finder.accesses.clear()
        self.environment.setattr(finder, "_store", ProgramStore())
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self.environment.delenv("KERNELFARM_TRACE_KEY_FILE", raising=False)
        self.environment.setenv("KERNELFARM_ENDPOINT", endpoint)
        self.environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(disk))


@contextmanager
def warming_job(farm: Farm, folder: Path, environment: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job with the keys of a farm; its manifest has one small model that no other job has."""
    keys = farm.data_dir / "keys"
    environment.setenv("KERNELFARM_TRACE_KEY_FILE", str(keys / TRACE_KEY))
    environment.setenv("KERNELFARM_TRUSTED_KEYS_FILE", str(keys / PUBLIC_KEYS))
    job = Job(farm, folder, environment, next(_numbers) + 0.8125)
    job.write(job.model())
    yield job
    counters.reset()
    torch._dynamo.reset()
